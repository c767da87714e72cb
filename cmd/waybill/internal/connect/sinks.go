package connect

// SinkKinds returns all kinds of sinks. A new one is a row here, and a function that opens it.
func SinkKinds() []SinkKind {
	return []SinkKind{
		{
			Schemes: []string{"nats://", "tls://", "nats:"}, Form: "nats://user:password@host:4222,host2:4222/STREAM?create=true&ca=FILE&creds=FILE",
			Help: "JetStream. The stream is waybill if none is named, and made if create says so. The subject is STREAM.{topic} unless " +
				"sink.topic says otherwise. nats:embedded?dir=waybill-jetstream&listen=127.0.0.1:4222 is a server inside this process",
			open: openNATS,
		},
		{
			Schemes: []string{"kafka://"}, Form: "kafka://user:password@host:9092,host2:9092?tls=true&ca=FILE&sasl=scram-sha-512&create=true",
			Help: "Kafka. create=true has the broker make topics that are missing, if it may; sasl is plain, scram-sha-256 or scram-sha-512", open: openKafka,
		},
		{
			Schemes: []string{"amqp://", "amqps://"}, Form: "amqps://user:password@host:5671/vhost?ca=FILE&declare=true",
			Help: "RabbitMQ. The topic is an exchange, or with queues=true a queue; declare=true makes it when it is first used", open: openRabbit,
		},
		{
			Schemes: []string{"redis://", "rediss://"}, Form: "rediss://user:password@host:6379/0?ca=FILE&existing=true",
			Help: "Redis Streams. The topic is a stream; existing=true makes none", open: openRedis,
		},
		{
			Schemes: []string{"pulsar://", "pulsar+ssl://"}, Form: "pulsar+ssl://host:6651,host2:6651/tenant/namespace?ca=FILE&token=…&subscriptions=billing,stock",
			Help: "Pulsar. The namespace is public/default if none is named. The subscriptions are made on every topic before the first event goes there: " +
				"Pulsar keeps nothing for those who come later", open: openPulsar,
		},
		{
			Schemes: []string{"https://", "http://"}, Form: "https://host/path?ca=FILE&cert=FILE&key=FILE",
			Help: "a webhook: each event is posted as a whole (CloudEvents, structured mode), signed with sink.secret (Standard Webhooks). ca, insecure, and cert with key " +
				"are not sent; all other parameters are the endpoint's", open: openWebhook,
		},
		{
			Schemes: []string{"log:"}, Form: "log: or log:payload", Help: "print a line of JSON for every event, without or with its payload", open: openLog,
		},
	}
}
