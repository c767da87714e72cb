package filebroker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/driver"
)

// SourceConfig configures a [Source]. Zero fields have their defaults.
type SourceConfig struct {
	// Reader is the durable consumer. One process at a time may run it.
	// Required.
	Reader string
	// Name identifies the source in logs, metrics and dead letters. Defaults to
	// Reader.
	Name string
	// Topic is the topic to read. Required.
	Topic string
	// DeadLetter is the topic for messages that can never be handled. Defaults
	// to Reader and ".dead".
	DeadLetter string
	// Receive configures how messages are passed to the consumer. Deferred
	// messages stay in memory.
	Receive broker.ReceiverConfig
}

// Source reads a topic.
type Source struct {
	b     *Broker
	cfg   SourceConfig
	codec *broker.Codec
}

// Source returns a source.
func (b *Broker) Source(cfg SourceConfig) (*Source, error) {
	if cfg.Name == "" {
		cfg.Name = cfg.Reader
	}
	if cfg.DeadLetter == "" {
		cfg.DeadLetter = cfg.Reader + ".dead"
	}
	var errs []error
	for _, field := range []struct{ name, value string }{{"Reader", cfg.Reader}, {"Topic", cfg.Topic}, {"DeadLetter", cfg.DeadLetter}} {
		if err := names.Check(field.value); err != nil {
			errs = append(errs, fmt.Errorf("SourceConfig.%s: %w", field.name, err))
		}
	}
	codec, err := broker.NewCodec(broker.Kafka, broker.CodecConfig{})
	errs = append(errs, err, cfg.Receive.Validate())
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("filebroker: %w", err)
	}
	return &Source{b: b, cfg: cfg, codec: codec}, nil
}

// Name implements broker.Source.
func (s *Source) Name() string { return s.cfg.Name }

// Run implements broker.Source.
func (s *Source) Run(ctx context.Context, c waybill.Sink) error {
	return driver.Receive(ctx, s.cfg.Name, s.codec, c, s.cfg.Receive, s.open)
}

// open starts a session. A message that is done has an empty file of the same
// name in the reader's folder.
func (s *Source) open(context.Context) (driver.Session, error) {
	acks := filepath.Join(s.b.dir, s.cfg.Topic, s.cfg.Reader+".acks")
	if err := os.MkdirAll(acks, 0o750); err != nil {
		return nil, Failures().Classify(fmt.Errorf("filebroker: %w", err))
	}
	return &session{Source: s, folder: filepath.Join(s.b.dir, s.cfg.Topic), acks: acks}, nil
}

// session is one connection of the source.
type session struct {
	*Source
	folder, acks string
	tenure       driver.Tenure // files have no delivery counts
}

// Take implements driver.Session. The session begins at the first message, and
// passes on every message that is not done.
func (s *session) Take(ctx context.Context, r *driver.Receiver) error {
	acked, err := list(s.acks, 0)
	if err != nil {
		return err
	}
	done := make(map[uint64]bool, len(acked))
	for _, n := range acked {
		done[n] = true
	}
	for last := uint64(0); ctx.Err() == nil; {
		numbers, err := list(s.folder, last)
		if err != nil {
			return err
		}
		for _, n := range numbers {
			if n != last+1 {
				break // a message was added while the folder was read: it is next
			}
			last = n
			if done[n] {
				continue
			}
			m, err := read(s.folder, n)
			if err != nil {
				return err
			}
			in := &driver.Incoming{Message: m, Order: n, Tenure: &s.tenure, Handle: n}
			if err := r.Put(ctx, in); ctx.Err() != nil {
				return nil // the next session reads the message again
			} else if err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(s.b.cfg.PollInterval):
		}
	}
	return nil
}

// Ack implements driver.Session.
func (s *session) Ack(_ context.Context, batch []*driver.Incoming) error {
	for _, in := range batch {
		if err := store(s.acks, in.Handle.(uint64), nil); err != nil {
			return err
		}
	}
	return nil
}

// DeadLetter implements driver.Session.
func (s *session) DeadLetter(_ context.Context, in *driver.Incoming, reason error) error {
	m := driver.DeadLetter(s.codec, s.cfg.Name, in, reason)
	m.Topic = s.cfg.DeadLetter
	return s.b.publish(&m)
}

// Close implements driver.Session.
func (*session) Close(context.Context) error { return nil }
