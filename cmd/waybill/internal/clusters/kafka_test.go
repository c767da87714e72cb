//go:build unix

package clusters_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/internal/testserver/private"
)

// TestKafkaKilled: the leader of a partition, the controller and the
// coordinator of the consumers' group are killed, in turn. Every promise is
// kept.
func TestKafkaKilled(t *testing.T) {
	failures(t)
	runKafka(t, false)
}

// TestKafkaFrozen: the leader of a partition, the controller and the
// coordinator hang, in turn, until the others do the work, and continue beside
// them. Every promise is kept.
func TestKafkaFrozen(t *testing.T) {
	failures(t)
	runKafka(t, true)
}

func runKafka(t *testing.T, frozen bool) {
	t.Helper()
	k := &kafkaCluster{brokers: brokers{Cluster: private.KafkaReplicas(t), frozen: frozen}}
	k.leader, k.publish = k.leads, k.published
	for _, s := range k.Servers {
		k.hosts = append(k.hosts, s.DSN)
	}
	runBrokers(t, &k.brokers, "kafka://"+strings.Join(k.hosts, ","))
}

// servedTopic is a topic that no consumer of the soak takes.
const servedTopic = "served"

// kafkaCluster is a cluster of Kafka servers, each of which is broker and
// controller.
type kafkaCluster struct {
	brokers
	hosts     []string
	partition int32 // of servedTopic: the next failure takes its leader
}

// connected calls f with a new client.
func (k *kafkaCluster) connected(f func(client *kgo.Client, admin *kadm.Client) error) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(k.hosts...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DialTimeout(time.Second),
		kgo.RetryTimeout(2*time.Second), kgo.RequestTimeoutOverhead(time.Second), kgo.ProduceRequestTimeout(2*time.Second), kgo.MetadataMinAge(100*time.Millisecond))
	if err != nil {
		return err
	}
	defer client.Close()
	return f(client, kadm.NewClient(client))
}

// leads waits until every replica has what it missed, and returns the leader of
// one of the soak's partitions, the controller, or the coordinator of the
// soak's group. It leads a partition of the test, too.
func (k *kafkaCluster) leads(ctx context.Context, turn int) (name string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	var last error
	err = until(ctx, func(ctx context.Context) bool {
		last = k.connected(func(client *kgo.Client, admin *kadm.Client) error {
			node, err := k.leadsNow(ctx, client, admin, turn)
			name = fmt.Sprintf("%s-%d", testserver.KafkaName, node)
			return err
		})
		return last == nil
	})
	return name, errors.Join(err, last)
}

func (k *kafkaCluster) leadsNow(ctx context.Context, client *kgo.Client, admin *kadm.Client, turn int) (node int32, err error) {
	topics, err := admin.ListTopicsWithInternal(ctx)
	if err != nil {
		return 0, err
	}
	if !topics.Has(servedTopic) {
		_, err := admin.CreateTopic(ctx, 3*int32(len(k.Servers)), -1, nil, servedTopic)
		return 0, errors.Join(err, errors.New("the topic of the test is new"))
	}
	soaked, err := k.replicated(topics)
	if err != nil {
		return 0, err
	}
	switch turn % 3 {
	case 0:
		node = soaked[turn/3%len(soaked)].Leader
	case 1:
		node, err = quorumLeader(ctx, client)
	default:
		run, _, _ := strings.Cut(soaked[0].Topic, ".")
		at := admin.FindGroupCoordinators(ctx, run)[run]
		node, err = at.NodeID, at.Err
	}
	if err != nil {
		return 0, err
	}
	for _, p := range topics[servedTopic].Partitions {
		if p.Leader == node {
			k.partition = p.Partition
			return node, nil
		}
	}
	// The partitions go back to the servers that had them first.
	_, err = admin.ElectLeaders(ctx, kadm.ElectPreferredReplica, nil)
	return 0, errors.Join(err, fmt.Errorf("node %d leads no partition of the test", node))
}

// replicated returns the partitions of the soak's topics, if all replicas of
// all topics are in sync.
func (k *kafkaCluster) replicated(topics kadm.TopicDetails) (soaked []kadm.PartitionDetail, err error) {
	for _, topic := range topics.Sorted() {
		if topic.Err != nil {
			return nil, topic.Err
		}
		for _, p := range topic.Partitions.Sorted() {
			if p.Err != nil || p.Leader < 0 || len(p.ISR) != len(k.Servers) {
				return nil, fmt.Errorf("%s/%d is not replicated: %+v", p.Topic, p.Partition, p)
			}
			if strings.HasPrefix(p.Topic, "soak_") && !strings.HasSuffix(p.Topic, ".dead") {
				soaked = append(soaked, p)
			}
		}
	}
	if len(soaked) == 0 {
		return nil, errors.New("the soak has no topic")
	}
	return soaked, nil
}

// quorumLeader returns the active controller. Brokers name any of them in their
// metadata.
func quorumLeader(ctx context.Context, client *kgo.Client) (int32, error) {
	req := kmsg.NewPtrDescribeQuorumRequest()
	topic, partition := kmsg.NewDescribeQuorumRequestTopic(), kmsg.NewDescribeQuorumRequestTopicPartition()
	topic.Topic = "__cluster_metadata"
	topic.Partitions = append(topic.Partitions, partition)
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return 0, err
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if p.LeaderID > 0 {
				return p.LeaderID, nil
			}
		}
	}
	return 0, errors.New("the controllers have no leader")
}

// published publishes a record to the partition of the failed leader.
func (k *kafkaCluster) published(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 4*time.Second)
	defer cancel()
	return k.connected(func(client *kgo.Client, _ *kadm.Client) error {
		return client.ProduceSync(ctx, &kgo.Record{Topic: servedTopic, Partition: k.partition}).FirstErr()
	})
}
