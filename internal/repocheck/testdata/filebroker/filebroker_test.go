package filebroker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"example.com/filebroker"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/drivertest"
)

func TestConformance(t *testing.T) {
	drivertest.Run(t, drivertest.Harness{
		Name: "filebroker", Parallel: true,
		Capabilities: drivertest.Capabilities{Source: true, MaxPayload: 64 << 10},
		Open:         instance,
	})
}

// instance returns a broker over a new folder. A broker with a server starts it
// here, or connects to one, and uses a topic with a random name.
func instance(t *testing.T) drivertest.Instance {
	dir := t.TempDir()
	b, err := filebroker.Open(dir, filebroker.Config{MaxBytes: 100 << 10, PollInterval: 5 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	sink, err := b.Sink(filebroker.SinkConfig{})
	if err != nil {
		t.Fatal(err)
	}
	codec, err := broker.NewCodec(broker.Kafka, broker.CodecConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return drivertest.Instance{
		Topic: "orders", Sink: sink, Codec: codec,
		Source: func(name string, cfg broker.ReceiverConfig) broker.Source {
			src, err := b.Source(filebroker.SourceConfig{Reader: name, Topic: "orders", Receive: cfg})
			if err != nil {
				t.Fatal(err)
			}
			return src
		},
		Read: func(context.Context) ([]broker.Message, error) { return messages(filepath.Join(dir, "orders")) },
		DeadLetters: func(_ context.Context, source string) ([]broker.Message, error) {
			return messages(filepath.Join(dir, source+".dead"))
		},
		Publish: func(_ context.Context, m broker.Message) error {
			text, err := json.Marshal(m)
			if err != nil {
				return err
			}
			old, err := messages(filepath.Join(dir, "orders"))
			if err != nil {
				return err
			}
			if err := os.MkdirAll(filepath.Join(dir, "orders"), 0o750); err != nil {
				return err
			}
			name := fmt.Sprintf("%020d.json", len(old)+1)
			return os.WriteFile(filepath.Join(dir, "orders", name), text, 0o600)
		},
	}
}

// messages reads the files of a folder without the broker.
func messages(folder string) ([]broker.Message, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		return nil, err
	}
	found := make([]broker.Message, len(files))
	for i, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(text, &found[i]); err != nil {
			return nil, err
		}
	}
	return found, nil
}

func TestFailures(t *testing.T) {
	b, err := filebroker.Open(t.TempDir(), filebroker.Config{MaxBytes: 10})
	if err != nil {
		t.Fatal(err)
	}
	sink, err := b.Sink(filebroker.SinkConfig{})
	if err != nil {
		t.Fatal(err)
	}
	d := waybill.Delivery{Event: waybill.NewEvent("OrderPlaced", 1), Attempt: 1}
	d.ID = waybill.NewID()
	drivertest.Failures(t, filebroker.Failures(), map[string]error{
		"message too large":                  sink.Deliver(t.Context(), []waybill.Delivery{d})[0],
		"no space left":                      &fs.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC},
		"permission denied":                  &fs.PathError{Op: "open", Path: "x", Err: syscall.EACCES},
		"connection lost, refused or silent": context.DeadlineExceeded,
	}, "")
}
