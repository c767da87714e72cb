package kafkabroker

import (
	"errors"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/driver"
)

// Failures returns the failure table of Kafka, as the package comment and
// docs/brokers.md show it.
func Failures() driver.Failures {
	return driver.Failures{
		{
			Name: "MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE", Class: waybill.ClassPermanent, Why: "it was sent alone; its size does not change",
			Match: driver.IsAny(kerr.MessageTooLarge, kerr.RecordListTooLarge),
		},
		{
			Name: "INVALID_RECORD, INVALID_TIMESTAMP", Class: waybill.ClassPermanent, Why: "it was sent alone; the topic does not accept it",
			Match: driver.IsAny(kerr.InvalidRecord, kerr.InvalidTimestamp),
		},
		{
			Name: "INVALID_TOPIC_EXCEPTION", Class: waybill.ClassPermanent, Why: "the name comes from the event",
			Match: driver.IsAny(kerr.InvalidTopicException),
		},
		{
			Name: "UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID", Class: waybill.ClassUnavailable, Scope: "topic", Why: "the topic has yet to be created",
			Match: driver.IsAny(kerr.UnknownTopicOrPartition, kerr.UnknownTopicID),
		},
		{
			Name: "TOPIC_AUTHORIZATION_FAILED", Class: waybill.ClassUnavailable, Scope: "topic", Why: "the account has no write access",
			Match: driver.IsAny(kerr.TopicAuthorizationFailed),
		},
		{
			Name: "NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS_AFTER_APPEND", Class: waybill.ClassUnavailable, Scope: "topic",
			Why:   "fewer in-sync replicas than min.insync.replicas; temporary",
			Match: driver.IsAny(kerr.NotEnoughReplicas, kerr.NotEnoughReplicasAfterAppend),
		},
		{
			Name:  "OUT_OF_ORDER_SEQUENCE_NUMBER, UNKNOWN_PRODUCER_ID, INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED",
			Class: waybill.ClassUnavailable, Scope: "broker", Why: "the producer is unusable and is replaced", Match: isFatal,
		},
		{
			Name:  "CLUSTER_AUTHORIZATION_FAILED, SASL_AUTHENTICATION_FAILED, UNSUPPORTED_SASL_MECHANISM, ILLEGAL_SASL_STATE",
			Class: waybill.ClassUnavailable, Scope: "broker", Why: "the account is at fault, not the event",
			Match: driver.IsAny(kerr.ClusterAuthorizationFailed, kerr.SaslAuthenticationFailed, kerr.UnsupportedSaslMechanism, kerr.IllegalSaslState),
		},
		{
			Name:  "any other error that Kafka calls retriable",
			Class: waybill.ClassUnavailable, Scope: "broker", Why: "no leader, no room, too busy: temporary, according to Kafka",
			Match: func(err error) bool {
				var code *kerr.Error
				return errors.As(err, &code) && code.Retriable
			},
		},
		{
			Name: "not confirmed in time", Class: waybill.ClassUnavailable, Scope: "broker", Why: "the broker may or may not have the message",
			Match: driver.IsAny(errSilent, kgo.ErrRecordTimeout, kgo.ErrRecordRetries, kgo.ErrMaxBuffered, kgo.ErrAborting),
		},
		{
			Name: "closed", Class: waybill.ClassUnavailable, Scope: "broker", Why: "the client reconnects by itself, unless the broker was closed",
			Match: driver.IsAny(errClosed, kgo.ErrClientClosed),
		},
		driver.Unreachable(kgo.IsRetryableBrokerErr),
	}
}

// isFatal reports whether a producer cannot continue, because it and the
// cluster disagree about the records that were sent.
func isFatal(err error) bool {
	return driver.IsAny(kerr.OutOfOrderSequenceNumber, kerr.UnknownProducerID, kerr.InvalidProducerEpoch,
		kerr.InvalidProducerIDMapping, kerr.ProducerFenced)(err)
}

// isBatchRejected reports whether Kafka rejected a whole batch because of one
// record without naming it.
func isBatchRejected(err error) bool {
	return driver.IsAny(kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.InvalidTimestamp)(err)
}
