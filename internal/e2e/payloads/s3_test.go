package payloads

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"gocloud.dev/blob"
	"gocloud.dev/blob/s3blob"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/payload"
)

// The S3 server: Versity's gateway, which serves folders.
const (
	gateway        = "github.com/versity/versitygw/cmd/versitygw"
	gatewayVersion = "v1.8.0"
	accessKey      = "waybill"
	secretKey      = "only-for-tests"
	startTime      = time.Minute
)

// install returns the gateway's program, which go install keeps in the user's
// cache folder.
func install(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(cache, "waybill-testserver", "versitygw-"+gatewayVersion)
	program := filepath.Join(folder, "versitygw")
	if _, err := os.Stat(program); err == nil {
		return program
	}
	// Concurrent installations do not see each other's files.
	if err := os.MkdirAll(filepath.Dir(folder), 0o750); err != nil {
		t.Fatal(err)
	}
	scratch, err := os.MkdirTemp(filepath.Dir(folder), ".new-*")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	cmd := exec.CommandContext(t.Context(), "go", "install", gateway+"@"+gatewayVersion)
	cmd.Env = append(os.Environ(), "GOBIN="+scratch, "GOWORK=off", "GOFLAGS=", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("install the S3 server: %v\n%s", err, out)
	}
	if err := os.Rename(scratch, folder); err != nil {
		if _, have := os.Stat(program); have != nil {
			t.Fatal(err)
		}
	}
	return program
}

// serve starts the gateway, stops it at the end of the test, and returns a
// client.
func serve(t *testing.T) *s3.Client {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a free port
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	for _, folder := range []string{"data", "meta"} {
		if err := os.Mkdir(filepath.Join(root, folder), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	var output bytes.Buffer
	ctx, stop := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, install(t), "--access", accessKey, "--secret", secretKey, "--port", address, //nolint:gosec // our own arguments
		"posix", "--sidecar", filepath.Join(root, "meta"), filepath.Join(root, "data"))
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
		if t.Failed() {
			t.Logf("the S3 server says:\n%s", output.String())
		}
	})
	client := s3.New(s3.Options{
		BaseEndpoint: aws.String("http://" + address), Region: "us-east-1", UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(accessKey, secretKey, ""),
	})
	for began := time.Now(); ; {
		_, err := client.ListBuckets(t.Context(), nil)
		if err == nil {
			return client
		}
		select {
		case <-ended:
			t.Fatal("the S3 server has ended")
		case <-time.After(20 * time.Millisecond):
		}
		if time.Since(began) > startTime {
			t.Fatalf("the S3 server does not answer: %v", err)
		}
	}
}

func openBucket(t *testing.T, client *s3.Client, name string) *blob.Bucket {
	t.Helper()
	opened, err := s3blob.OpenBucket(t.Context(), client, name, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := opened.Close(); err != nil {
			t.Error(err)
		}
	})
	return opened
}

// encrypted is a pipeline over the bucket; the first key is the current one.
func encrypted(t *testing.T, b *blob.Bucket, keys ...payload.Key) *payload.Pipeline {
	t.Helper()
	secret, err := payload.Encrypt(keys[0], keys[1:]...)
	if err != nil {
		t.Fatal(err)
	}
	p, err := payload.New(payload.Gzip(1000), secret, payload.ClaimCheck(bucket{b}, 100))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func key(id string) payload.Key {
	return payload.Key{ID: id, Secret: bytes.Repeat([]byte(id[:1]), 32)}
}

// note returns an event whose payload does not shrink much.
func note(size int) waybill.Event {
	var text strings.Builder
	for i := 0; text.Len() < size; i++ {
		fmt.Fprintf(&text, "%x ", i*i*7919)
	}
	ev := waybill.NewEvent("NoteTaken", text.String())
	ev.ID = waybill.NewID()
	return ev
}

// wantOpen fails the test unless the pipeline opens the sealed event as it was.
func wantOpen(t *testing.T, p *payload.Pipeline, sealed, want waybill.Event) {
	t.Helper()
	if back, err := p.Open(t.Context(), sealed); err != nil || !bytes.Equal(back.Payload, want.Payload) {
		t.Errorf("%d of %d bytes, %v", len(back.Payload), len(want.Payload), err)
	}
}

// TestS3: compressed and encrypted payloads in a real S3 server. Keys are
// rotated while events under the old one exist; a blob that is gone or was
// changed is a permanent error, and a bucket that is missing is an outage.
func TestS3(t *testing.T) {
	client := serve(t)
	if _, err := client.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String("payloads")}); err != nil {
		t.Fatal(err)
	}
	opened := openBucket(t, client, "payloads")
	seal := func(p *payload.Pipeline, ev waybill.Event) waybill.Event {
		t.Helper()
		sealed, err := p.Seal(t.Context(), ev)
		if err != nil {
			t.Fatal(err)
		}
		if err := sealed.Validate(); err != nil {
			t.Error(err)
		}
		return sealed
	}

	old := encrypted(t, opened, key("2025"))
	first := note(2_000_000) // more than the outbox takes
	firstSealed := seal(old, first)
	wantOpen(t, old, firstSealed, first)

	// rotation: consumers first, then writers, then the old key goes
	both := encrypted(t, opened, key("3026"), key("2025"))
	second := note(300_000)
	secondSealed := seal(both, second)
	wantOpen(t, both, firstSealed, first)
	wantOpen(t, both, secondSealed, second)
	if _, err := old.Open(t.Context(), secondSealed); err == nil || classOf(err) != waybill.ClassRetry {
		t.Errorf("an event under a key that the consumer lacks: %v", err)
	}
	next := encrypted(t, opened, key("3026"))
	wantOpen(t, next, secondSealed, second)
	if _, err := next.Open(t.Context(), firstSealed); err == nil || !strings.Contains(err.Error(), "2025") {
		t.Errorf("an event under a removed key: %v, want the key's id", err)
	}

	at := blobOf(t, opened, second)
	content, err := opened.ReadAll(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(content, second.Payload[:50]) {
		t.Error("the blob is not encrypted")
	}
	if err := opened.WriteAll(t.Context(), at, append(content, 'x'), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := next.Open(t.Context(), secondSealed); classOf(err) != waybill.ClassPermanent || errors.Is(err, payload.ErrGone) {
		t.Errorf("a blob that was changed: %v", err)
	}
	if err := opened.Delete(t.Context(), at); err != nil {
		t.Fatal(err)
	}
	_, err = next.Open(t.Context(), secondSealed)
	if !errors.Is(err, payload.ErrGone) || classOf(err) != waybill.ClassPermanent || !strings.Contains(err.Error(), at) {
		t.Errorf("a blob that is gone: %v", err)
	}
	if err := opened.WriteAll(t.Context(), at, content, nil); err != nil { // restored
		t.Fatal(err)
	}
	wantOpen(t, next, secondSealed, second)

	missing := encrypted(t, openBucket(t, client, "misspelled"), key("3026"))
	if _, err := missing.Open(t.Context(), secondSealed); classOf(err) != waybill.ClassUnavailable || errors.Is(err, payload.ErrGone) {
		t.Errorf("a bucket that does not exist: %v", err)
	}
	if _, err := missing.Seal(t.Context(), note(1000)); err == nil {
		t.Error("a payload was stored in a bucket that does not exist")
	}
}

func classOf(err error) waybill.Class {
	class, _ := waybill.Classify(err)
	return class
}
