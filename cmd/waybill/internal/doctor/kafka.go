package doctor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybillhq/waybill/broker/kafkabroker"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

type kafkaProbe struct{ admin *kadm.Client }

func (k *kafkaProbe) close() { k.admin.Close() }

func dialKafka(ctx context.Context, u *url.URL) (probe, error) {
	opts, err := kafkabroker.ClientOptions(connect.Client(u), slog.New(slog.DiscardHandler))
	if err != nil { // err may quote the URL
		return nil, errors.New("rejected by Kafka's client")
	}
	opts = append(opts, kgo.ClientID("waybill doctor"), kgo.DisableClientMetrics())
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
			Name: "kafka replication", For: kafkaSink, Looks: "replicas and `min.insync.replicas` of the topics of events in the tables; the relay waits for all acks",
			Wants: "3 and 2", run: onTopics(kafkaReplication),
		},
		{
			Name: "kafka loss", For: kafkaSink, Looks: "`unclean.leader.election.enable`, `cleanup.policy` of those topics",
			Wants: "false, and delete; compaction drops events of an aggregate", run: onTopics(kafkaLoss),
		},
		{
			Name: "kafka retention", For: kafkaSink, Looks: "`retention.ms`, `retention.bytes`, `segment.ms` of those topics; `inbox.redelivery-window`, `inbox.retention`",
			Wants: "a retention of at least the redelivery window and a day; inbox records that outlive the messages", run: onTopics(kafkaRetention),
		},
	}
}

// kafkaTopic is a topic and its settings.
type kafkaTopic struct {
	name     string
	replicas int
	settings map[string]string
}

// onTopics runs a check on every topic, until one fails.
func onTopics(check func(p *patient, t kafkaTopic) Finding) func(context.Context, *patient) (Finding, error) {
	return func(ctx context.Context, p *patient) (Finding, error) {
		k, ok := p.sink.(*kafkaProbe)
		if !ok {
			return Finding{}, errors.New("no connection")
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
		worst := good("%d topics checked", len(all))
		for _, t := range all {
			f := check(p, t)
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

func kafkaReplication(_ *patient, t kafkaTopic) Finding {
	const replicas = 3
	insync := t.settings["min.insync.replicas"]
	switch {
	case t.replicas == 0:
		return fail("kafka-topics.sh --create --topic "+t.name+" --replication-factor 3, or add ?create=true to sink.url", "topic %s does not exist", t.name)
	case t.replicas >= 2 && insync == "1":
		return warn(alter(t.name, "min.insync.replicas=2"), "topic %s accepts events that only one broker has stored: the loss of that broker loses them", t.name)
	case t.replicas < replicas:
		return warn("kafka-reassign-partitions.sh, with three replicas each", "topic %s has %d replicas: the loss of a broker loses events or stops deliveries", t.name, t.replicas)
	case insync == strconv.Itoa(t.replicas):
		return warn(alter(t.name, "min.insync.replicas=2"), "topic %s accepts an event when all %d replicas have stored it: the loss of a broker stops deliveries", t.name, t.replicas)
	}
	return good("topic %s: %d replicas, %s of which must store an event", t.name, t.replicas, insync)
}

func kafkaLoss(_ *patient, t kafkaTopic) Finding {
	switch {
	case t.replicas == 0:
		return unseen(fmt.Sprintf("topic %s does not exist", t.name))
	case strings.Contains(t.settings["cleanup.policy"], "compact"):
		return fail(alter(t.name, "cleanup.policy=delete"), "topic %s is compacted: only the last event of an aggregate is kept", t.name)
	case t.settings["unclean.leader.election.enable"] == "true":
		return fail(alter(t.name, "unclean.leader.election.enable=false"), "topic %s can elect a leader that lacks events", t.name)
	}
	return good("topic %s does not drop events", t.name)
}

// minRetention is the minimum retention, so that a consumer can be down for a
// night without losing events.
const minRetention = 24 * time.Hour

// kafkaRetention compares the retention of a topic with the redelivery window
// and with the retention of inbox records. The time of an event starts with its
// publication: the relay's own attempts do not matter.
func kafkaRetention(p *patient, t kafkaTopic) Finding {
	if t.replicas == 0 {
		return unseen(fmt.Sprintf("topic %s does not exist", t.name))
	}
	keep, err := t.span("retention.ms")
	segment, err2 := t.span("segment.ms")
	if err := errors.Join(err, err2); err != nil {
		return unseen(err.Error())
	}
	longest := keep + min(segment, endless-keep) // an event is deleted with the last event of its segment
	window, remember, show := p.Inbox.RedeliveryWindow, p.Inbox.Retention, settings.FormatDuration
	switch size := t.settings["retention.bytes"]; {
	case size != "-1":
		return fail(alter(t.name, "retention.bytes=-1"), "topic %s drops the oldest events of a partition above %s bytes, read or not", t.name, size)
	case keep < window:
		return fail(alter(t.name, "retention.ms="+millis(window)),
			"topic %s drops events after %s, read or not, and inbox.redelivery-window is %s", t.name, show(keep), show(window))
	case keep < minRetention:
		return warn(alter(t.name, "retention.ms="+millis(minRetention)),
			"topic %s drops events after %s: a consumer that is down for longer never receives them", t.name, show(keep))
	case remember == 0:
		return good("topic %s keeps events long enough", t.name)
	case longest == endless:
		return warn("set inbox.retention to 0s", "topic %s keeps events forever, and inbox.retention is %s: a group that rereads the topic applies older events again", t.name, show(remember))
	case remember < longest:
		return warn("set inbox.retention to "+show(longest),
			"topic %s may keep an event for %s (retention.ms and segment.ms), and inbox.retention is %s: a group that rereads the topic applies older events again",
			t.name, show(longest), show(remember))
	}
	return good("topic %s keeps events long enough, and inbox records outlive them", t.name)
}

// endless stands for an unlimited duration, or one that exceeds a Duration.
const endless = time.Duration(math.MaxInt64)

// span reads a setting in milliseconds.
func (t kafkaTopic) span(key string) (time.Duration, error) {
	n, err := strconv.ParseInt(t.settings[key], 10, 64)
	switch {
	case err != nil: // some services hide it
		return 0, fmt.Errorf("topic %s: %s is %q", t.name, key, t.settings[key])
	case n < 0 || n > endless.Milliseconds():
		return endless, nil
	}
	return time.Duration(n) * time.Millisecond, nil
}

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// alter returns the command that changes a topic.
func alter(topic, setting string) string {
	return "kafka-configs.sh --alter --entity-type topics --entity-name " + topic + " --add-config " + setting
}
