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
	"github.com/waybillhq/waybill/observe"
)

// ReceiverConfig holds what may be tuned. A field that is zero has its default.
type ReceiverConfig struct {
	// Secrets are those that requests may be signed with. At least one is needed, unless Unsigned says that everybody may send.
	Secrets  []string
	Unsigned bool
	// UnsignedAttributes takes signed requests in binary mode as well, whose attributes are headers
	// that no signature covers. Anyone who has seen one request can then send its body as an event
	// of another type, tenant or aggregate. It is for the time in which not all senders use
	// structured mode yet.
	UnsignedAttributes bool
	// Name says which receiver it is, in logs and metrics. Defaults to "webhook".
	Name string
	// Tolerance is how old, or how far in the future, a signature may be. Defaults to 5 min.
	Tolerance time.Duration
	// MaxBody is the largest body, in bytes. Defaults to 2 MiB: in structured mode a payload may be
	// in base 64, and the attributes and headers are beside it.
	MaxBody int64
	// Timeout is how long the consumer may take: when the client has gone away, it still finishes. Defaults to 30 s.
	Timeout time.Duration
	// Logger gets what an operator should know. Defaults to [slog.Default];
	// slog.New(slog.DiscardHandler) silences it.
	Logger *slog.Logger
	// Observe plugs in metrics.
	Observe observe.Hooks
}

// Receiver is an http.Handler that hands signed requests to a consumer.
//
// | the result | the answer |
// |---|---|
// | done | 204 |
// | not now (in progress, not due, or a failure that the consumer counts itself) | 425 and Retry-After |
// | a failure that counts | 500 |
// | the consumer's own destination is down | 503 |
// | it can never succeed, or is in conflict with what was received | 422 |
// | the request cannot be read as an event | 400 |
// | not signed, or wrongly, or too old; an attribute that is not signed; signed with another id than the event's | 401 |
// | too large | 413 |
type Receiver struct {
	cfg      ReceiverConfig
	keys     []key
	codec    *broker.Codec
	consumer broker.Consumer
}

// NewReceiver returns a handler that feeds the consumer.
func NewReceiver(c broker.Consumer, cfg ReceiverConfig) (*Receiver, error) {
	var errs []error
	if c == nil {
		errs = append(errs, errors.New("no consumer"))
	}
	keys, err := parseSecrets(cfg.Secrets)
	errs = append(errs, err)
	switch {
	case len(cfg.Secrets) == 0 && !cfg.Unsigned:
		errs = append(errs, errors.New("field Secrets: none; anybody could send events (Unsigned says that anybody may)"))
	case len(cfg.Secrets) > 0 && cfg.Unsigned:
		errs = append(errs, errors.New("field Unsigned: there are Secrets"))
	}
	if cfg.Unsigned && cfg.UnsignedAttributes {
		errs = append(errs, errors.New("field UnsignedAttributes: no signature is checked"))
	}
	if cfg.Tolerance < 0 || cfg.MaxBody < 0 || cfg.Timeout < 0 {
		errs = append(errs, errors.New("fields Tolerance, MaxBody and Timeout: not negative"))
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
	if cfg.Timeout == 0 {
		cfg.Timeout = 30 * time.Second
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
		http.Error(w, "POST an event", http.StatusMethodNotAllowed)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, r.cfg.MaxBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		http.Error(w, fmt.Sprintf("more than %d bytes", large.Limit), http.StatusRequestEntityTooLarge)
		return
	case err != nil:
		// Cut off: whoever sent it is gone, and will send it again.
		http.Error(w, "the body was cut off", http.StatusRequestTimeout)
		return
	}
	d, err := r.event(req.Header, body)
	switch {
	case errors.Is(err, ErrSignature):
		r.cfg.Logger.Warn("waybill: a webhook was refused", "source", r.cfg.Name, "error", err)
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	case err != nil:
		r.setAside(waybill.ID{}, err)
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.answer(w, r.deliver(req.Context(), &d), d.ID)
}

// event returns the event of a request. Where signatures are checked, it consists of what is
// signed, and of nothing else: the id, the time and the body are. A header is not, and the content
// type is one: it decides only whether the request is read.
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
	foreign := d.Headers["ce_id"] // the codec keeps an id there that is not one of Waybill's
	if !structured {
		foreign = h.Get("Ce-Id") // a header could pass for what the codec keeps
	}
	if !names(m.PublishID, &d, foreign) {
		return d, fmt.Errorf("%w for this event: %s is not its id", ErrSignature, HeaderID)
	}
	return d, nil
}

// names reports whether an id that was signed is the event's: its publish id, or what a foreign
// producer calls it. An id that Waybill has made never counts as foreign: under the text of a
// replay's, an event would be a new one.
func names(id string, d *waybill.Delivery, foreign string) bool {
	if id == broker.PublishID(d.ID, d.Replay) {
		return true
	}
	own, _, _ := strings.Cut(id, "-")
	_, err := waybill.ParseID(own)
	return err != nil && d.Replay == 0 && id == foreign
}

// deliver hands one event over. The consumer finishes although the client may have gone: it would only have to begin again.
func (r *Receiver) deliver(ctx context.Context, d *waybill.Delivery) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.Timeout)
	defer cancel()
	began := time.Now()
	// A sender that lost the connection does not know that this process died, and cannot count it.
	d.Uncounted = true
	results := r.consumer.Deliver(ctx, []waybill.Delivery{*d})
	if len(results) == 1 {
		err = results[0]
	} else {
		err = fmt.Errorf("webhook: the consumer returned %d results for one event", len(results))
	}
	if received := r.cfg.Observe.Received; received != nil {
		class, _ := waybill.Classify(err)
		received(r.cfg.Name, class, d.Attempt > 1, time.Since(began))
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
		r.setAside(id, err)
		http.Error(w, "refused", http.StatusUnprocessableEntity)
	case waybill.ClassRetry:
		if delay > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(delay.Seconds()))))
		}
		// What failed is for the log here; the sender gets no inside view.
		r.cfg.Logger.Warn("waybill: a webhook failed", "source", r.cfg.Name, "event", id.String(), "error", err)
		http.Error(w, "failed", http.StatusInternalServerError)
	}
}

// setAside raises the alarm: the sender, who is told with the answer, is the one that keeps the dead letter.
func (r *Receiver) setAside(id waybill.ID, err error) {
	r.cfg.Logger.Error("waybill: a webhook can never be handled; its sender keeps it as a dead letter",
		"source", r.cfg.Name, "event", id.String(), "error", err)
	if aside := r.cfg.Observe.DeadLettered; aside != nil {
		aside(r.cfg.Name, err)
	}
}

// message returns a request as the codec reads it. A header that occurs twice cannot be an attribute: its first line counts for
// nobody, so it is left out, and the codec says what is missing.
func message(h http.Header, body []byte) *broker.Message {
	m := &broker.Message{PublishID: h.Get(HeaderID), ContentType: h.Get("Content-Type"), Payload: body}
	for name, values := range h {
		if len(values) == 1 {
			m.Headers = append(m.Headers, broker.Header{Name: name, Value: values[0]})
		}
	}
	return m
}

// Source is a receiver with a server of its own, for programs that have none.
type Source struct {
	listener net.Listener
	cfg      ReceiverConfig
}

// NewSource returns a source that serves the listener at every path. It closes it when it ends.
func NewSource(l net.Listener, cfg ReceiverConfig) (*Source, error) {
	if l == nil {
		return nil, errors.New("webhook: no listener")
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

// Run implements broker.Source: it serves until ctx ends, then finishes the requests in hand.
func (s *Source) Run(ctx context.Context, c broker.Consumer) error {
	receiver, err := NewReceiver(c, s.cfg)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler: receiver, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute,
		WriteTimeout: receiver.cfg.Timeout + time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 128 << 10,
		ErrorLog: slog.NewLogLogger(receiver.cfg.Logger.Handler(), slog.LevelWarn),
	}
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), receiver.cfg.Timeout)
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
