//go:build linux || darwin

package manage

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/waybillhq/waybill/internal/testserver"
)

// pulsar is a broker and a bookie in one process, with their metadata in files.
type pulsar struct{ certificates *Certificates }

// secured implements securer.
func (pulsar) secured(c Certificates) engine { return pulsar{certificates: &c} }

func (pulsar) jars() jars {
	const group, version = "org.apache.pulsar:", "4.0.6"
	return jars{
		name: testserver.PulsarName, version: version,
		roots: []string{
			group + "pulsar-broker:" + version,
			group + "pulsar-client-tools:" + version,
			// a part of the broker that is not available in every version
			group + "pulsar-opentelemetry:4.0.0",
		},
		without: []string{group + "jetcd-core-shaded"}, // metadata in etcd
		ignore:  []string{"confluent", "maven.restlet.org"},
	}
}

func (pulsar) name() string    { return testserver.PulsarName }
func (pulsar) env() string     { return testserver.EnvPulsar }
func (pulsar) account() string { return "" }

// ports: broker, web server, and broker with TLS. The bookie selects its own
// port.
func (p pulsar) ports() int {
	if p.certificates != nil {
		return 3
	}
	return 2
}

func (p pulsar) programs() []program { return p.jars().programs() }

func (p pulsar) fetch(ctx context.Context, h *Home) error { return p.jars().fetch(ctx, h) }

func (p pulsar) version(context.Context) (string, error) { return p.jars().version, nil }

func (pulsar) recipe(data string) []step { return emptyFolder(data) }

// pulsarOpens are the Java modules that Pulsar's own scripts open.
func pulsarOpens() []string {
	var options []string
	for _, part := range []string{
		"java.base/sun.net", "java.base/java.lang", "java.base/java.nio", "java.base/java.util.zip", "java.base/jdk.internal.misc",
		"java.base/jdk.internal.platform", "java.management/sun.management", "jdk.management/com.sun.management.internal",
	} {
		options = append(options, "--add-opens", part+"=ALL-UNNAMED")
	}
	return append(options, "-Dio.netty.tryReflectionSetAccessible=true")
}

func (p pulsar) start(at place, ports []int) command {
	config := filepath.Join(at.dir, "standalone.conf")
	client, clientConfig := filepath.Join(at.dir, "pulsar-client"), filepath.Join(at.dir, "client.conf")
	settings := pulsarConfig(ports)
	if c := p.certificates; c != nil {
		settings += fmt.Sprintf("brokerServicePortTls=%d\ntlsCertificateFilePath=%s\ntlsKeyFilePath=%s\ntlsTrustCertsFilePath=%s\n"+
			"tlsRequireTrustedClientCertOnConnect=true\n", ports[2], c.Cert, c.Key, c.CA)
	}
	options := append(pulsarOpens(), "-XX:MaxDirectMemorySize=256m", ownTemp(at))
	return command{
		argv: p.jars().java("768m", options, "org.apache.pulsar.PulsarStandaloneStarter",
			"--config", config, "--no-functions-worker", "--no-stream-storage",
			"--metadata-dir", filepath.Join(at.data, "metadata"),
			"--bookkeeper-dir", filepath.Join(at.data, "bookkeeper")),
		files: map[string]string{
			config: settings,
			clientConfig: fmt.Sprintf("brokerServiceUrl=%s\nwebServiceUrl=http://127.0.0.1:%d\n",
				p.dsn(ports[0]), ports[1]),
			client: "#!/bin/sh\nexec " + shellWords(p.jars().java("192m", []string{ownTemp(at)}, "org.apache.pulsar.client.cli.PulsarClientTool", clientConfig)) + ` "$@"` + "\n",
		},
		also: []string{testserver.EnvPulsarClient + "=" + client},
	}
}

// shellWords quotes a command line for a shell.
func shellWords(argv []string) string {
	var quoted []string
	for _, arg := range argv {
		quoted = append(quoted, "'"+strings.ReplaceAll(arg, "'", `'\''`)+"'")
	}
	return strings.Join(quoted, " ")
}

func pulsarConfig(ports []int) string {
	return strings.Join([]string{
		"clusterName=standalone",
		"bindAddress=127.0.0.1",
		"advertisedAddress=127.0.0.1",
		fmt.Sprintf("brokerServicePort=%d", ports[0]),
		fmt.Sprintf("webServicePort=%d", ports[1]),
		"managedLedgerDefaultEnsembleSize=1", // there is one bookie
		"managedLedgerDefaultWriteQuorum=1",
		"managedLedgerDefaultAckQuorum=1",
		"managedLedgerCacheSizeMB=32",
		"journalSyncData=true", // acknowledged messages survive a crash
		"allowAutoTopicCreation=true",
		"loadBalancerEnabled=false",
		"webSocketServiceEnabled=false",
		"numHttpServerThreads=8",
		"",
	}, "\n")
}

// ready requires the log line, because another program may answer on the port,
// and the health check, for which the broker sends a message to itself.
func (pulsar) ready(ctx context.Context, r running) bool {
	return strings.Contains(r.log, "HTTP Service started at") && probeHTTP(ctx, r.ports[1], "/admin/v2/brokers/health") == nil
}

func (pulsar) portTaken(log string) bool { return strings.Contains(log, "Address already in use") }

func (pulsar) dsn(port int) string { return fmt.Sprintf("pulsar://127.0.0.1:%d", port) }
