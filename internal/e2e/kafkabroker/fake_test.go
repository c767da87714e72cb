package kafkabroker_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/kafkabroker"
	"github.com/waybillhq/waybill/internal/testtls"
)

// fake starts a cluster in this process that can be made to fail. It has the
// topics orders, with two partitions, and orders.dead.
func fake(t *testing.T, opts ...kfake.Opt) (*kfake.Cluster, string) {
	t.Helper()
	c, err := kfake.NewCluster(append(opts, kfake.NumBrokers(1), kfake.SeedTopics(2, "orders"), kfake.SeedTopics(1, "orders.dead"))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, c.ListenAddrs()[0]
}

func classOf(err error) waybill.Class {
	class, _ := waybill.Classify(err)
	return class
}

// published returns the ids of the events of an aggregate, in order.
func published(t *testing.T, address, topic, aggregate string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	list, err := records(ctx, address, topic)
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, r := range list {
		if string(r.Key) != "/order/"+aggregate {
			continue
		}
		for _, h := range r.Headers {
			if h.Key == "ce_id" {
				ids = append(ids, string(h.Value))
			}
		}
	}
	return ids
}

// partitionOf returns the partition of an aggregate's events.
func partitionOf(t *testing.T, address, aggregate string) int32 {
	t.Helper()
	list, err := records(t.Context(), address, "orders")
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(list, func(r *kgo.Record) bool { return string(r.Key) == "/order/"+aggregate })
	if at < 0 {
		t.Fatalf("nothing of aggregate %s", aggregate)
	}
	return list[at].Partition
}

// When one partition fails in the middle of a batch, no later event overtakes
// the failed one, and other aggregates go on.
func TestAPartialFailureReordersNothing(t *testing.T) {
	cluster, address := fake(t)
	s := sink(t, open(t, address, kafkabroker.Config{}), kafkabroker.SinkConfig{})
	// Enough aggregates to be in both partitions.
	var wide []waybill.Delivery
	for n := range 16 {
		wide = append(wide, event("orders", fmt.Sprint("a", n)))
	}
	for _, err := range s.Deliver(t.Context(), wide) {
		if err != nil {
			t.Fatal(err)
		}
	}
	other := slices.IndexFunc(wide, func(d waybill.Delivery) bool {
		return partitionOf(t, address, d.AggregateID) != partitionOf(t, address, "a0")
	})
	if other < 0 {
		t.Fatal("all are in one partition")
	}
	x, y := "a0", wide[other].AggregateID
	batch := []waybill.Delivery{event("orders", x), event("orders", y), event("orders", x), event("orders", y), event("orders", x)}
	cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "orders", Partitions: []int32{partitionOf(t, address, x)}, Err: kerr.PolicyViolation})
	results := s.Deliver(t.Context(), batch)
	if classOf(results[0]) != waybill.ClassRetry || results[2] == nil || results[4] == nil {
		t.Errorf("the aggregate that failed has %v, %v, %v", results[0], results[2], results[4])
	}
	if results[1] != nil || results[3] != nil {
		t.Errorf("the other has %v, %v", results[1], results[3])
	}
	if got := published(t, address, "orders", x); len(got) != 1 {
		t.Fatalf("%d events of the aggregate that failed, want the one before", len(got))
	}
	want := []string{wide[0].ID.String(), batch[0].ID.String(), batch[2].ID.String(), batch[4].ID.String()}
	for _, err := range s.Deliver(t.Context(), []waybill.Delivery{batch[0], batch[2], batch[4]}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := published(t, address, "orders", x); !slices.Equal(got, want) {
		t.Errorf("the order is %v, want %v", got, want)
	}
}

// A producer that the cluster no longer accepts is replaced, and no attempt is
// counted.
func TestAFatalProducerIsReplaced(t *testing.T) {
	for _, code := range []*kerr.Error{
		kerr.OutOfOrderSequenceNumber, kerr.UnknownProducerID, kerr.InvalidProducerEpoch, kerr.InvalidProducerIDMapping, kerr.ProducerFenced,
	} {
		t.Run(code.Message, func(t *testing.T) {
			cluster, address := fake(t)
			s := sink(t, open(t, address, kafkabroker.Config{}), kafkabroker.SinkConfig{})
			begun := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, Observe: true, Count: -1})
			if err := s.Deliver(t.Context(), []waybill.Delivery{event("orders", "a")})[0]; err != nil {
				t.Fatal(err)
			}
			before := begun.Hits()
			cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "orders", Err: code})
			if err := s.Deliver(t.Context(), []waybill.Delivery{event("orders", "a")})[0]; classOf(err) != waybill.ClassUnavailable {
				t.Errorf("class %v: %v", classOf(err), err)
			}
			if err := s.Deliver(t.Context(), []waybill.Delivery{event("orders", "a")})[0]; err != nil {
				t.Errorf("the next one: %v", err)
			}
			if begun.Hits() == before {
				t.Error("it is still the same producer")
			}
		})
	}
}

// Kafka rejects a whole batch because of one record. The other records must be
// published.
func TestWhatIsRefusedTogetherIsTriedAlone(t *testing.T) {
	cluster, address := fake(t)
	s := sink(t, open(t, address, kafkabroker.Config{}), kafkabroker.SinkConfig{})
	batch := []waybill.Delivery{event("orders", "a"), event("orders", "a"), event("orders", "b"), event("orders", "c")}
	cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "orders", Err: kerr.MessageTooLarge})
	for i, err := range s.Deliver(t.Context(), batch) {
		if err != nil {
			t.Errorf("delivery %d: %v", i, err)
		}
	}
	if got := published(t, address, "orders", "a"); !slices.Equal(got, []string{batch[0].ID.String(), batch[1].ID.String()}) {
		t.Errorf("the order is %v", got)
	}
}

// The cluster itself answers, so that the test covers the client's handling of
// the answer.
func TestAnswersHaveTheirClass(t *testing.T) {
	for code, want := range map[*kerr.Error]waybill.Class{
		kerr.MessageTooLarge: waybill.ClassPermanent, kerr.RecordListTooLarge: waybill.ClassPermanent, kerr.InvalidRecord: waybill.ClassPermanent, kerr.InvalidTopicException: waybill.ClassPermanent,
		kerr.TopicAuthorizationFailed: waybill.ClassUnavailable, kerr.ClusterAuthorizationFailed: waybill.ClassUnavailable, kerr.NotEnoughReplicas: waybill.ClassUnavailable,
		kerr.NotLeaderForPartition: waybill.ClassUnavailable, kerr.KafkaStorageError: waybill.ClassUnavailable, kerr.UnknownTopicOrPartition: waybill.ClassUnavailable,
		kerr.PolicyViolation: waybill.ClassRetry,
	} {
		t.Run(code.Message, func(t *testing.T) {
			t.Parallel()
			cluster, address := fake(t)
			s := sink(t, open(t, address, kafkabroker.Config{PublishTimeout: 2 * time.Second}), kafkabroker.SinkConfig{})
			fault := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "orders", Err: code, Count: -1})
			if err := s.Deliver(t.Context(), []waybill.Delivery{event("orders", "a")})[0]; classOf(err) != want {
				t.Errorf("class %v, want %v: %v", classOf(err), want, err)
			}
			fault.Remove()
			insist(t, s, event("orders", "a"))
		})
	}
}

// insist delivers until it succeeds: after a failure the client may need time.
func insist(t *testing.T, s *kafkabroker.Sink, d waybill.Delivery) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		err := s.Deliver(t.Context(), []waybill.Delivery{d})[0]
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// A cluster that accepts a request and does not answer must not block the
// relay, and an unconfirmed event is not done.
func TestASilentClusterIsDown(t *testing.T) {
	cluster, address := fake(t)
	s := sink(t, open(t, address, kafkabroker.Config{PublishTimeout: 2 * time.Second}), kafkabroker.SinkConfig{})
	if err := s.Deliver(t.Context(), []waybill.Delivery{event("orders", "a")})[0]; err != nil {
		t.Fatal(err)
	}
	speak := make(chan struct{})
	cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		cluster.SleepControl(func() { <-speak })
		return nil, nil, false
	})
	err := s.Deliver(t.Context(), []waybill.Delivery{event("orders", "a")})[0]
	if classOf(err) != waybill.ClassUnavailable {
		t.Errorf("class %v: %v", classOf(err), err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := s.Deliver(ctx, []waybill.Delivery{event("orders", "a")})[0]; classOf(err) != waybill.ClassUnavailable {
		t.Errorf("class %v when the caller's time is over: %v", classOf(err), err)
	}
	close(speak)
	insist(t, s, event("orders", "a"))
}

func TestLoggingIn(t *testing.T) {
	for _, mechanism := range []string{"plain", "scram-sha-256", "scram-sha-512"} {
		_, address := fake(t, kfake.EnableSASL(), kfake.Superuser(strings.ToUpper(mechanism), "shop", "p@ss,canary"))
		b, err := kafkabroker.Open(t.Context(), "kafka://shop:p%40ss%2Ccanary@"+address+"?sasl="+mechanism, kafkabroker.Config{})
		if err != nil {
			t.Errorf("%s: %v", mechanism, err)
			continue
		}
		if err := sink(t, b, kafkabroker.SinkConfig{}).Deliver(t.Context(), []waybill.Delivery{event("orders", "a")})[0]; err != nil {
			t.Errorf("%s: %v", mechanism, err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		_, err = kafkabroker.Open(t.Context(), "kafka://shop:wrongcanary@"+address+"?sasl="+mechanism, kafkabroker.Config{})
		if err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s with a wrong password: %v", mechanism, err)
		}
	}
}

// The cluster's certificate is verified with the authority in the URL, and
// insecure settings are logged.
func TestTLS(t *testing.T) {
	a := testtls.New(t)
	_, address := fake(t, kfake.EnableSASL(), kfake.Superuser("PLAIN", "shop", "canary"), kfake.Superuser("SCRAM-SHA-512", "shop", "canary"), kfake.TLS(a.Server(t, true)))
	client := "&cert=" + a.Cert + "&key=" + a.Key
	for name, tc := range map[string]struct {
		query string
		works bool
		warns bool
	}{
		"with the authority":            {"tls=true&ca=" + a.CA + client, true, false},
		"an authority says TLS":         {"ca=" + a.CA + client + "&sasl=scram-sha-512", true, false},
		"with another authority":        {"ca=" + testtls.New(t).CA + client, false, false},
		"with the system's":             {"tls=true" + client, false, false},
		"without a certificate":         {"ca=" + a.CA, false, false},
		"insecure":                      {"insecure=true" + client, true, true},
		"an authority, and TLS is off":  {"tls=false&ca=" + a.CA, false, false},
		"a password without encryption": {"sasl=plain", false, true},
		"a hashed one":                  {"sasl=scram-sha-512", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			b, err := kafkabroker.Open(t.Context(), "kafka://shop:canary@"+address+"?"+tc.query,
				kafkabroker.Config{PublishTimeout: 2 * time.Second, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			if (err == nil) != tc.works {
				t.Fatalf("Open: %v", err)
			}
			if warned := strings.Contains(log.String(), "INSECURE"); warned != tc.warns || strings.Contains(log.String(), "canary") {
				t.Errorf("logged %q", log.String())
			}
			if err != nil {
				return
			}
			defer func() { _ = b.Close() }()
			insist(t, sink(t, b, kafkabroker.SinkConfig{}), event("orders", "a"))
		})
	}
}
