//go:build linux || darwin

package manage

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/waybillhq/waybill/internal/testserver"
)

// kafka is one node that is broker and controller.
type kafka struct{ certificates *Certificates }

// secured implements securer.
func (kafka) secured(c Certificates) engine { return kafka{certificates: &c} }

const kafkaHeap = "384m"

func (kafka) jars() jars {
	const version = "3.9.1"
	return jars{
		name: testserver.KafkaName, version: version,
		// Without the second archive, nothing is logged.
		roots: []string{"org.apache.kafka:kafka_2.13:" + version, "org.slf4j:slf4j-simple:1.7.36"},
	}
}

func (kafka) name() string    { return testserver.KafkaName }
func (kafka) env() string     { return testserver.EnvKafka }
func (kafka) account() string { return "" }

// ports: broker, controller, and broker with TLS.
func (k kafka) ports() int {
	if k.certificates != nil {
		return 3
	}
	return 2
}

func (k kafka) programs() []program {
	return append(k.jars().programs(), program{names: []string{"kcat"}, packages: []string{"kcat"}, optional: true})
}

func (k kafka) fetch(ctx context.Context, h *Home) error { return k.jars().fetch(ctx, h) }

func (k kafka) version(context.Context) (string, error) { return k.jars().version, nil }

// recipe formats the folder. The folder does not store the ports.
func (k kafka) recipe(data string) []step {
	return k.format(data, kafkaProperties(data, []int{1, 2}))
}

func (k kafka) format(data, properties string) []step {
	const config = "kafka-format.properties"
	format := k.jars().java(kafkaHeap, nil, "kafka.tools.StorageTool", "format", "--cluster-id", "d2F5YmlsbC10ZXN0cw", "--config", config)
	return []step{
		{argv: []string{"mkdir", data}},
		{argv: []string{"/bin/sh", "-c", `cat >"$1"`, "sh", config}, stdin: properties},
		{argv: format},
	}
}

func kafkaProperties(data string, ports []int) string {
	return strings.Join([]string{
		"process.roles=broker,controller",
		"node.id=1",
		fmt.Sprintf("listeners=PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d", ports[0], ports[1]),
		kafkaSettings(data, ports[0], ports[1]),
	}, "\n")
}

// kafkaSettings returns the properties that are the same for every node of a
// cluster, except its folder and its port.
func kafkaSettings(data string, port, controller int) string {
	return strings.Join([]string{
		fmt.Sprintf("advertised.listeners=PLAINTEXT://127.0.0.1:%d", port),
		"listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"controller.listener.names=CONTROLLER",
		fmt.Sprintf("controller.quorum.voters=1@127.0.0.1:%d", controller),
		"log.dirs=" + data,
		"auto.create.topics.enable=true",
		"num.partitions=3",
		"offsets.topic.num.partitions=4",
		"offsets.topic.replication.factor=1",
		"transaction.state.log.num.partitions=2",
		"transaction.state.log.replication.factor=1",
		"transaction.state.log.min.isr=1",
		"group.initial.rebalance.delay.ms=0", // no other member will join
		// A broker that restarts after a kill must wait until the session of
		// its previous process has expired.
		"broker.session.timeout.ms=3000",
		"broker.heartbeat.interval.ms=500",
		"",
	}, "\n")
}

func (k kafka) start(at place, ports []int) command {
	config := filepath.Join(at.dir, "server.properties")
	properties := kafkaProperties(at.data, ports)
	if k.certificates != nil {
		properties += kafkaTLS(k.certificates, ports)
	}
	return command{
		argv:  k.jars().java(kafkaHeap, []string{ownTemp(at)}, "kafka.Kafka", config),
		files: map[string]string{config: properties},
	}
}

// kafkaTLS returns properties that follow the others, and override those of the
// same name. Nodes and tools continue without TLS.
func kafkaTLS(c *Certificates, ports []int) string {
	return strings.Join([]string{
		fmt.Sprintf("listeners=PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d,SSL://127.0.0.1:%d", ports[0], ports[1], ports[2]),
		fmt.Sprintf("advertised.listeners=PLAINTEXT://127.0.0.1:%d,SSL://127.0.0.1:%d", ports[0], ports[2]),
		"listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL",
		"ssl.client.auth=required",
		"ssl.keystore.type=PEM",
		"ssl.keystore.certificate.chain=" + onOneLine(c.Cert),
		"ssl.keystore.key=" + onOneLine(c.Key),
		"ssl.truststore.type=PEM",
		"ssl.truststore.certificates=" + onOneLine(c.CA),
		"",
	}, "\n")
}

// onOneLine returns a file as the value of a property; an unreadable file as an
// empty one, which the server rejects.
func onOneLine(path string) string {
	text, _ := os.ReadFile(path)
	return strings.ReplaceAll(strings.TrimSpace(string(text)), "\n", `\n`)
}

// ready also requires the log line: another program may answer on the port.
func (kafka) ready(ctx context.Context, r running) bool {
	return strings.Contains(r.log, "Kafka Server started") && probeKafka(ctx, r.ports[0]) == nil
}

func (kafka) portTaken(log string) bool { return strings.Contains(log, "Address already in use") }

func (kafka) dsn(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
