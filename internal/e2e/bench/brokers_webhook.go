package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"time"

	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/webhook"
)

// hookRequests is the number of concurrent requests of a batch, by hand and in
// the sink.
const hookRequests = 16

func webhookLane() lane {
	return lane{name: "webhook", events: 50_000, confirms: "signed, answered with 204", open: func(context.Context) (*brokerField, error) {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(http.StatusNoContent)
		}))
		secret := []byte("a secret of more than 24 bytes")
		sink, err := webhook.NewSink(server.URL, webhook.Config{
			Secrets: []string{"whsec_" + base64.StdEncoding.EncodeToString(secret)}, Requests: hookRequests,
		})
		if err != nil {
			return nil, err
		}
		codec, err := broker.NewCodec(broker.HTTP, broker.CodecConfig{})
		transport := &http.Transport{MaxIdleConnsPerHost: hookRequests * brokerWorkers}
		client := &http.Client{Transport: transport, Timeout: 15 * time.Second}
		return &brokerField{
			sink: sink, codec: codec, reset: nothing,
			byHand: func() (func(context.Context, []broker.Message) error, error) {
				return func(ctx context.Context, batch []broker.Message) error {
					return postAll(ctx, client, server.URL, secret, batch)
				}, nil
			},
			close: func() {
				transport.CloseIdleConnections()
				_ = sink.Close()
				server.Close()
			},
		}, err
	}}
}

// postAll posts a batch with limited concurrency.
func postAll(ctx context.Context, client *http.Client, url string, secret []byte, batch []broker.Message) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan *broker.Message)
	var all sync.WaitGroup
	for range hookRequests {
		all.Go(func() {
			for m := range next {
				if err := post(ctx, client, url, secret, m); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := range batch {
		next <- &batch[i]
	}
	close(next)
	all.Wait()
	return context.Cause(ctx)
}

func post(ctx context.Context, client *http.Client, url string, secret []byte, m *broker.Message) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(m.Payload))
	if err != nil {
		return err
	}
	for _, h := range m.Headers {
		req.Header.Set(h.Name, h.Value)
	}
	now := strconv.FormatInt(time.Now().Unix(), 10)
	mac := hmac.New(sha256.New, secret)
	fmt.Fprintf(mac, "%s.%s.%s", m.PublishID, now, m.Payload)
	req.Header.Set("Webhook-Id", m.PublishID)
	req.Header.Set("Webhook-Timestamp", now)
	req.Header.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close() //nolint:errcheck // the status is the answer
	_, _ = io.Copy(io.Discard, res.Body)
	if res.StatusCode != http.StatusNoContent {
		return fmt.Errorf("status %s", res.Status)
	}
	return nil
}
