package connect

// SinkKinds returns all kinds of sinks. A new kind is a row here and a function
// that opens it.
func SinkKinds() []SinkKind {
	return []SinkKind{
		{
			Schemes: []string{"nats://", "tls://", "nats:"}, Form: "nats://user:password@host:4222,host2:4222/STREAM?create=true&replicas=3&ca=FILE&creds=FILE",
			Help: "JetStream. The default stream is waybill; create=true creates it, with as many replicas as replicas says (1 if it is absent). The subject is STREAM.{topic} unless " +
				"sink.topic is set. nats:embedded?dir=waybill-jetstream&listen=127.0.0.1:4222 is a server in this process",
			open: openNATS,
		},
		{
			Schemes: []string{"kafka://"}, Form: "kafka://user:password@host:9092,host2:9092?tls=true&ca=FILE&sasl=scram-sha-512&create=true",
			Help: "Kafka. create=true creates missing topics, if the broker permits it; sasl is plain, scram-sha-256 or scram-sha-512", open: openKafka,
		},
		{
			Schemes: []string{"amqp://", "amqps://"}, Form: "amqps://user:password@host:5671,host2:5671/vhost?ca=FILE&create=true",
			Help: "RabbitMQ. The topic is an exchange, or with queues=true a queue; create=true declares it at its first use", open: openRabbit,
		},
		{
			Schemes: []string{"redis://", "rediss://"}, Form: "rediss://user:password@host:26379,host2:26379/0?ca=FILE&existing=true&sentinel=NAME&replicas=1",
			Help: "Redis Streams. The topic is a stream; existing=true publishes to existing streams only. With sentinel the hosts are sentinels, and NAME is the primary; " +
				"sentinel_username and sentinel_password are their account. With cluster=true the hosts are nodes of a Redis Cluster. replicas is the number of replicas that must have received an event (0 if it is absent)", open: openRedis,
		},
		{
			Schemes: []string{"pulsar://", "pulsar+ssl://"}, Form: "pulsar+ssl://host:6651,host2:6651/tenant/namespace?ca=FILE&token=…&subscriptions=billing,stock",
			Help: "Pulsar. The default namespace is public/default. The subscriptions are created on every topic before its first event: " +
				"Pulsar keeps no messages for later subscriptions", open: openPulsar,
		},
		{
			Schemes: []string{"https://", "http://"}, Form: "https://host/path?ca=FILE&cert=FILE&key=FILE",
			Help: "Webhook. Each event is one POST request (CloudEvents, structured mode), signed with sink.secret (Standard Webhooks). ca, insecure, and cert with key " +
				"are not sent; all other parameters are part of the endpoint's URL", open: openWebhook,
		},
		{
			Schemes: []string{"log:"}, Form: "log: or log:payload", Help: "Standard output, with one line of JSON per event, without or with its payload", open: openLog,
		},
	}
}
