package doctor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/waybillhq/waybill/broker/kafkabroker"
)

type kafkaProbe struct{ admin *kadm.Client }

func (k *kafkaProbe) close() { k.admin.Close() }

func dialKafka(ctx context.Context, u *url.URL) (probe, error) {
	var hosts []string
	for host := range strings.SplitSeq(u.Host, ",") {
		if _, _, err := net.SplitHostPort(host); err != nil {
			host = net.JoinHostPort(strings.Trim(host, "[]"), "9092")
		}
		hosts = append(hosts, host)
	}
	opts := []kgo.Opt{kgo.SeedBrokers(hosts...), kgo.ClientID("waybill doctor"), kgo.DisableClientMetrics()}
	query := u.Query()
	if query.Get("tls") == "true" {
		opts = append(opts, kgo.DialTLSConfig(&tls.Config{MinVersion: tls.VersionTLS12}))
	}
	if name := u.User.Username(); name != "" {
		password, _ := u.User.Password()
		switch query.Get("sasl") {
		case "scram-sha-256":
			opts = append(opts, kgo.SASL(scram.Auth{User: name, Pass: password}.AsSha256Mechanism()))
		case "scram-sha-512":
			opts = append(opts, kgo.SASL(scram.Auth{User: name, Pass: password}.AsSha512Mechanism()))
		default:
			opts = append(opts, kgo.SASL(plain.Auth{User: name, Pass: password}.AsMechanism()))
		}
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, err
	}
	if err := client.Ping(ctx); err != nil {
		client.Close()
		return nil, err
	}
	return &kafkaProbe{kadm.NewClient(client)}, nil
}

func kafkaChecks() []Check {
	return []Check{
		{
			Name: "kafka replication", For: kafkaSink, Looks: "replicas and `min.insync.replicas` of the topics of events in the tables; the relay waits for acks of all",
			Wants: "3 and 2", run: onTopics(kafkaReplication),
		},
		{
			Name: "kafka loss", For: kafkaSink, Looks: "`unclean.leader.election.enable`, `cleanup.policy` of those topics",
			Wants: "false, and delete: compaction drops events of an aggregate", run: onTopics(kafkaLoss),
		},
	}
}

// kafkaTopic is a topic and its settings.
type kafkaTopic struct {
	name     string
	replicas int
	settings map[string]string
}

// onTopics runs a check on every topic, until one is wrong.
func onTopics(check func(t kafkaTopic) Finding) func(context.Context, *patient) (Finding, error) {
	return func(ctx context.Context, p *patient) (Finding, error) {
		k, ok := p.sink.(*kafkaProbe)
		if !ok {
			return Finding{}, errors.New("there is no connection")
		}
		names, err := p.topics(ctx, kafkabroker.Names())
		if err != nil {
			return Finding{}, err
		}
		if len(names) == 0 {
			return noTopic(), nil
		}
		all, err := k.describe(ctx, names)
		if err != nil {
			return Finding{}, err
		}
		worst := good("%d topics looked at", len(all))
		for _, t := range all {
			f := check(t)
			if f.Status == Fail {
				return f, nil
			}
			if f.Status != OK && worst.Status == OK {
				worst = f
			}
		}
		return worst, nil
	}
}

func (k *kafkaProbe) describe(ctx context.Context, names []string) ([]kafkaTopic, error) {
	details, err := k.admin.ListTopics(ctx, names...)
	if err != nil {
		return nil, err
	}
	var out []kafkaTopic
	for _, name := range names {
		t := kafkaTopic{name: name}
		if d := details[name]; d.Err == nil && len(d.Partitions) > 0 {
			t.replicas = d.Partitions.NumReplicas()
		}
		out = append(out, t)
	}
	there := slices.DeleteFunc(slices.Clone(out), func(t kafkaTopic) bool { return t.replicas == 0 })
	if len(there) == 0 {
		return out, nil
	}
	var asked []string
	for _, t := range there {
		asked = append(asked, t.name)
	}
	configs, err := k.admin.DescribeTopicConfigs(ctx, asked...)
	if err != nil {
		return nil, err
	}
	for i := range out {
		if out[i].replicas == 0 {
			continue
		}
		c, err := configs.On(out[i].name, nil)
		if err != nil {
			return nil, err
		}
		if c.Err != nil {
			return nil, c.Err
		}
		out[i].settings = make(map[string]string)
		for _, kv := range c.Configs {
			out[i].settings[kv.Key] = kv.MaybeValue()
		}
	}
	return out, nil
}

func kafkaReplication(t kafkaTopic) Finding {
	const replicas = 3
	insync := t.settings["min.insync.replicas"]
	switch {
	case t.replicas == 0:
		return fail("kafka-topics.sh --create --topic "+t.name+" --replication-factor 3, or add ?create=true to sink.url", "there is no topic %s", t.name)
	case t.replicas >= 2 && insync == "1":
		return warn(alter(t.name, "min.insync.replicas=2"), "topic %s takes events that only one broker has: if it is lost, they are", t.name)
	case t.replicas < replicas:
		return warn("kafka-reassign-partitions.sh, with three replicas each", "topic %s has %d replicas: a broker that is lost takes events with it, or stops everything", t.name, t.replicas)
	}
	return good("topic %s: %d replicas, of which %s must have an event", t.name, t.replicas, insync)
}

func kafkaLoss(t kafkaTopic) Finding {
	switch {
	case t.replicas == 0:
		return unseen(fmt.Sprintf("there is no topic %s", t.name))
	case strings.Contains(t.settings["cleanup.policy"], "compact"):
		return fail(alter(t.name, "cleanup.policy=delete"), "topic %s is compacted: of an aggregate's events only the last stays", t.name)
	case t.settings["unclean.leader.election.enable"] == "true":
		return fail(alter(t.name, "unclean.leader.election.enable=false"), "topic %s lets a broker lead that lacks events", t.name)
	}
	return good("topic %s loses nothing by itself", t.name)
}

// alter is what to type to change a topic.
func alter(topic, setting string) string {
	return "kafka-configs.sh --alter --entity-type topics --entity-name " + topic + " --add-config " + setting
}
