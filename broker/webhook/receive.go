package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/driver"
	"github.com/waybillhq/waybill/observe"
)

// ReceiverConfig configures a [Receiver]. Zero fields have their defaults.
type ReceiverConfig struct {
	// Secrets verify the signatures of requests; one match is enough. At least
	// one secret is required, unless Unsigned is true.
	Secrets []string
	// Unsigned accepts requests from any sender, without a signature. Defaults
	// to false.
	Unsigned bool
	// UnsignedAttributes also accepts signed requests in binary mode, whose
	// attributes are headers that no signature covers. Any party that has seen
	// one request can then send its body as an event of another type, tenant or
	// aggregate. Use it only until all senders use structured mode. Defaults to
	// false.
	UnsignedAttributes bool
	// Name identifies the receiver in logs and metrics. Defaults to "webhook".
	Name string
	// Tolerance is the maximum age of a signature, and its maximum distance in
	// the future. Defaults to 5 min.
	Tolerance time.Duration
	// MaxBody is the maximum size of a body in bytes. Defaults to 2 MiB: in
	// structured mode the body holds attributes and headers, and the payload
	// may be in base64.
	MaxBody int64
	// DeliverTimeout limits one call of the consumer. The consumer finishes
	// even if the client disconnects. Defaults to 30 s.
	DeliverTimeout time.Duration
	// Logger receives rejected requests, failures and dead letters. Defaults to
	// [slog.Default]; slog.New(slog.DiscardHandler) disables logging.
	Logger *slog.Logger
	// Observe receives metrics. Defaults to no hooks.
	Observe observe.Hooks
}

// Receiver is an http.Handler that passes signed requests to a consumer.
//
// | result | response |
// |---|---|
// | done | 204 |
// | in progress, not due, or a failure that the consumer counts itself | 425 and Retry-After |
// | a counted failure | 500 |
// | the consumer's own destination is unavailable | 503 |
// | a permanent failure, or a conflict with a received event | 422 |
// | a request that cannot be decoded as an event | 400 |
// | a missing, invalid or old signature; unsigned attributes; a signed id that is not the event's | 401 |
// | too large | 413 |
type Receiver struct {
	cfg      ReceiverConfig
	keys     []key
	codec    *broker.Codec
	consumer waybill.Sink
}

// NewReceiver returns a handler that passes events to the consumer.
func NewReceiver(c waybill.Sink, cfg ReceiverConfig) (*Receiver, error) {
	var errs []error
	if c == nil {
		errs = append(errs, errors.New("consumer: nil"))
	}
	keys, err := parseSecrets("ReceiverConfig", cfg.Secrets)
	errs = append(errs, err)
	switch {
	case len(cfg.Secrets) == 0 && !cfg.Unsigned:
		errs = append(errs, errors.New("ReceiverConfig.Secrets: empty, and Unsigned is false"))
	case len(cfg.Secrets) > 0 && cfg.Unsigned:
		errs = append(errs, errors.New("ReceiverConfig.Unsigned: true, but Secrets is not empty"))
	}
	if cfg.Unsigned && cfg.UnsignedAttributes {
		errs = append(errs, errors.New("ReceiverConfig.UnsignedAttributes: true, but Unsigned is true as well"))
	}
	if cfg.Tolerance < 0 {
		errs = append(errs, fmt.Errorf("ReceiverConfig.Tolerance: %v is negative", cfg.Tolerance))
	}
	if cfg.MaxBody < 0 {
		errs = append(errs, fmt.Errorf("ReceiverConfig.MaxBody: %d is negative", cfg.MaxBody))
	}
	if cfg.DeliverTimeout < 0 {
		errs = append(errs, fmt.Errorf("ReceiverConfig.DeliverTimeout: %v is negative", cfg.DeliverTimeout))
	}
	codec, err := broker.NewCodec(broker.HTTP, broker.CodecConfig{})
	errs = append(errs, err)
	if err := fieldError(errs...); err != nil {
		return nil, err
	}
	if cfg.Name == "" {
		cfg.Name = "webhook"
	}
	if cfg.Tolerance == 0 {
		cfg.Tolerance = 5 * time.Minute
	}
	if cfg.MaxBody == 0 {
		cfg.MaxBody = 2 << 20
	}
	if cfg.DeliverTimeout == 0 {
		cfg.DeliverTimeout = 30 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Receiver{cfg: cfg, keys: keys, codec: codec, consumer: c}, nil
}

// ServeHTTP implements http.Handler.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "method not allowed: use POST", http.StatusMethodNotAllowed)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, r.cfg.MaxBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		http.Error(w, fmt.Sprintf("body larger than %d bytes", large.Limit), http.StatusRequestEntityTooLarge)
		return
	case err != nil:
		// The sender has disconnected and will retry.
		http.Error(w, "incomplete body", http.StatusRequestTimeout)
		return
	}
	d, err := r.event(req.Header, body)
	switch {
	case errors.Is(err, ErrSignature):
		r.cfg.Logger.Warn("webhook rejected", "source", r.cfg.Name, "error", err)
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	case err != nil:
		r.deadLettered(waybill.ID{}, err)
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.answer(w, r.deliver(req.Context(), &d), d.ID)
}

// event returns the event of a request. If signatures are verified, the event
// consists only of signed content: the id, the time and the body. Headers are
// not signed. The content type is a header, and decides only whether the
// request is read.
func (r *Receiver) event(h http.Header, body []byte) (waybill.Delivery, error) {
	if r.cfg.Unsigned {
		return r.codec.Decode(message(h, body))
	}
	if err := verify(r.keys, h, body, time.Now(), r.cfg.Tolerance); err != nil {
		return waybill.Delivery{}, err
	}
	m := message(h, body)
	structured := len(h.Values("Content-Type")) == 1 && broker.IsStructured(m.ContentType)
	switch {
	case structured:
		m.Headers = nil
	case !r.cfg.UnsignedAttributes:
		return waybill.Delivery{}, fmt.Errorf("%w for attributes in headers: want Content-Type application/cloudevents+json, "+
			"with all of the event in the signed body", ErrSignature)
	}
	d, err := r.codec.Decode(m)
	if err != nil {
		return d, err
	}
	// The codec stores an id here that is not a Waybill id.
	foreign := d.Headers["ce_id"]
	if !structured {
		// A header could imitate the codec's header.
		foreign = h.Get("Ce-Id")
	}
	if !names(m.PublishID, &d, foreign) {
		return d, fmt.Errorf("%w for this event: %s is not its id", ErrSignature, HeaderID)
	}
	return d, nil
}

// names reports whether a signed id is the event's: its publish id, or the id
// of a foreign producer. An id that Waybill generated never counts as foreign,
// because the publish id of a replay would otherwise become a new event.
func names(id string, d *waybill.Delivery, foreign string) bool {
	if id == driver.PublishID(d.ID, d.Replay) {
		return true
	}
	own, _, _ := strings.Cut(id, "-")
	_, err := waybill.ParseID(own)
	return err != nil && d.Replay == 0 && id == foreign
}

// deliver passes one event to the consumer. The consumer finishes even if the
// client has disconnected, because a retry would have to start over.
func (r *Receiver) deliver(ctx context.Context, d *waybill.Delivery) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.DeliverTimeout)
	defer cancel()
	began := time.Now()
	// A sender that lost the connection does not know that this process
	// crashed, and cannot count the attempt.
	d.Uncounted = true
	results := r.consumer.Deliver(ctx, []waybill.Delivery{*d})
	if len(results) == 1 {
		err = results[0]
	} else {
		err = fmt.Errorf("webhook: the consumer returned %d results for one event", len(results))
	}
	if received := r.cfg.Observe.Received; received != nil {
		class, _ := waybill.Classify(err)
		received(observe.ReceivedInfo{Source: r.cfg.Name, Class: class, Redelivered: d.Attempt > 1, Took: time.Since(began)})
	}
	return err
}

func (r *Receiver) answer(w http.ResponseWriter, err error, id waybill.ID) {
	class, delay := waybill.Classify(err)
	switch class {
	case waybill.ClassDone:
		w.WriteHeader(http.StatusNoContent)
	case waybill.ClassDefer:
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(max(delay, time.Second).Seconds()))))
		http.Error(w, "not now", http.StatusTooEarly)
	case waybill.ClassUnavailable:
		http.Error(w, "not available", http.StatusServiceUnavailable)
	case waybill.ClassPermanent:
		r.deadLettered(id, err)
		http.Error(w, "refused", http.StatusUnprocessableEntity)
	case waybill.ClassRetry:
		if delay > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(delay.Seconds()))))
		}
		// The failure goes to this log; the sender does not see internals.
		r.cfg.Logger.Warn("webhook failed", "source", r.cfg.Name, "event_id", id.String(), "error", err)
		http.Error(w, "failed", http.StatusInternalServerError)
	}
}

// deadLettered logs and reports an event that can never be handled. The
// response reports it to the sender, which keeps the dead letter.
func (r *Receiver) deadLettered(id waybill.ID, err error) {
	r.cfg.Logger.Error("webhook failed permanently; the sender keeps the dead letter",
		"source", r.cfg.Name, "event_id", id.String(), "error", err)
	if aside := r.cfg.Observe.DeadLettered; aside != nil {
		aside(observe.DeadLetteredInfo{Source: r.cfg.Name, Err: err})
	}
}

// message returns a request for the codec. A header that occurs twice is
// ambiguous and cannot be an attribute, so it is omitted, and the codec reports
// the missing attribute.
func message(h http.Header, body []byte) *broker.Message {
	m := &broker.Message{PublishID: h.Get(HeaderID), ContentType: h.Get("Content-Type"), Payload: body}
	for name, values := range h {
		if len(values) == 1 {
			m.Headers = append(m.Headers, broker.Header{Name: name, Value: values[0]})
		}
	}
	return m
}

// Source is a receiver with its own HTTP server.
type Source struct {
	listener net.Listener
	cfg      ReceiverConfig
}

// NewSource returns a source that serves the listener at every path. Run closes
// the listener when it ends.
func NewSource(l net.Listener, cfg ReceiverConfig) (*Source, error) {
	if l == nil {
		return nil, errors.New("webhook: listener: nil")
	}
	if _, err := NewReceiver(discard{}, cfg); err != nil {
		return nil, err
	}
	return &Source{listener: l, cfg: cfg}, nil
}

type discard struct{}

func (discard) Deliver(context.Context, []waybill.Delivery) []error { return nil }

// Name implements broker.Source.
func (s *Source) Name() string {
	if s.cfg.Name == "" {
		return "webhook"
	}
	return s.cfg.Name
}

// Run implements broker.Source: it serves until ctx ends, then finishes the
// requests in flight.
func (s *Source) Run(ctx context.Context, c waybill.Sink) error {
	receiver, err := NewReceiver(c, s.cfg)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler: receiver, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute,
		WriteTimeout: receiver.cfg.DeliverTimeout + time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 128 << 10,
		ErrorLog: slog.NewLogLogger(receiver.cfg.Logger.Handler(), slog.LevelWarn),
	}
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), receiver.cfg.DeliverTimeout)
		defer cancel()
		stopped <- server.Shutdown(end)
	})
	err = server.Serve(s.listener)
	if !stop() {
		if shutdown := <-stopped; shutdown != nil {
			return errors.Join(shutdown, server.Close())
		}
		return nil
	}
	return fmt.Errorf("webhook: %w", err)
}
