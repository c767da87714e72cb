package kafkabroker_test

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/drivertest"
	"github.com/waybillhq/waybill/broker/kafkabroker"
)

func TestFailures(t *testing.T) {
	drivertest.Failures(t, kafkabroker.Failures(), map[string]error{
		"MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE":              kerr.RecordListTooLarge,
		"INVALID_RECORD, INVALID_TIMESTAMP":                     kerr.InvalidTimestamp,
		"INVALID_TOPIC_EXCEPTION":                               kerr.InvalidTopicException,
		"UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID":          kerr.UnknownTopicID,
		"TOPIC_AUTHORIZATION_FAILED":                            kerr.TopicAuthorizationFailed,
		"NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS_AFTER_APPEND": kerr.NotEnoughReplicasAfterAppend,
		"any other error that Kafka calls retriable":            kerr.LeaderNotAvailable,
		"not confirmed in time":                                 kgo.ErrRecordTimeout,
		"closed":                                                kgo.ErrClientClosed,
		"connection lost, refused or silent":                    io.ErrUnexpectedEOF,
		"OUT_OF_ORDER_SEQUENCE_NUMBER, UNKNOWN_PRODUCER_ID, INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED": kerr.ProducerFenced,
		"CLUSTER_AUTHORIZATION_FAILED, SASL_AUTHENTICATION_FAILED, UNSUPPORTED_SASL_MECHANISM, ILLEGAL_SASL_STATE":                kerr.SaslAuthenticationFailed,
	}, "../../docs/brokers.md")
	if class, _ := waybill.Classify(kafkabroker.Failures().Classify(errors.New("an unknown error"))); class != waybill.ClassRetry {
		t.Errorf("anything else is %v", class)
	}
}

func TestTheTableIsInThePackageComment(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(doc), "// ", "")
	if !strings.Contains(text, strings.TrimSpace(kafkabroker.Failures().Table())) {
		t.Errorf("the package comment does not have\n%s", kafkabroker.Failures().Table())
	}
}
