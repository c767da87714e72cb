package grpckey

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/internal/logkey"
	"github.com/waybillhq/waybill/internal/requestkey"
)

const (
	// keyName is the metadata name of the key, replayedName the header of a
	// replayed answer.
	keyName      = "idempotency-key"
	replayedName = "idempotent-replayed"
	// requestID is the field of AIP-155.
	requestID = "request_id"
	maxKey    = 255
)

// Config configures an [Interceptor]. Scope and Methods are required.
type Config struct {
	// Scope returns the tenant and the principal of a key. Keys of different
	// scopes never collide. An error, or an empty scope, refuses the call. For
	// services without tenants and users, use [Unscoped]. Required.
	Scope func(ctx context.Context) (Scope, error)
	// Methods are the full names of the methods that need a key:
	// /shop.v1.Orders/Create. Others pass through. Required.
	Methods []string
	// Optional lets calls without a key pass through, unprotected. Defaults to
	// false.
	Optional bool
	// Store decides by the code whether an answer is final. Any other answer
	// goes to its client only, and the key may be used again. Defaults to
	// [StoreFinal].
	Store func(code codes.Code) bool
	// Retention is how long a repeat gets the answer, counted from its
	// completion. Defaults to the Retention of the keys.
	Retention time.Duration
	// WaitMax is how long a repeat waits for a concurrent call with the same
	// key. Defaults to no waiting.
	WaitMax time.Duration
	// Lease returns how long the key of a call stays claimed after the death of
	// its process; 0: the Lease of the keys. Defaults to that of the keys.
	Lease func(ctx context.Context, method string, req proto.Message) time.Duration
	// Hash returns the hash of all parts of a request that define it, for
	// clients whose repeats differ in a part that has no meaning, such as a
	// time. An error refuses the call with INVALID_ARGUMENT. Defaults to a hash
	// of the method and the message.
	Hash func(ctx context.Context, method string, req proto.Message) (idempotency.Hash, error)
	// Logger receives errors that clients must not see. Defaults to
	// [slog.Default]; slog.New(slog.DiscardHandler) silences it.
	Logger *slog.Logger
}

// Scope is the tenant and the principal of a key.
type Scope struct {
	// Tenant is at most 64 bytes.
	Tenant string
	// Principal is the caller. A principal never gets the answers of another.
	Principal string
	// open is only set by Unscoped.
	open bool
}

// Unscoped is a [Config.Scope] for services without tenants and users: all
// callers share one scope, so a client that guesses a key gets its answer.
func Unscoped(context.Context) (Scope, error) { return Scope{open: true}, nil }

// StoreFinal returns true for successes, and for errors that a repeat of the
// same request would get again.
func StoreFinal(code codes.Code) bool {
	final := []codes.Code{codes.OK, codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.FailedPrecondition, codes.OutOfRange}
	return slices.Contains(final, code)
}

// Interceptor makes methods run once per key.
type Interceptor[T any] struct {
	keys *idempotency.Keys[T]
	cfg  Config
}

// New returns an interceptor over keys. The error names every invalid field of
// the configuration.
func New[T any](keys *idempotency.Keys[T], cfg Config) (*Interceptor[T], error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if keys == nil {
		bad("keys is nil")
	}
	if cfg.Scope == nil {
		bad("Config.Scope: nil; set it, or use grpckey.Unscoped")
	}
	if len(cfg.Methods) == 0 {
		bad("Config.Methods: empty; gRPC does not declare which methods have effects")
	}
	for _, m := range cfg.Methods {
		if !strings.HasPrefix(m, "/") || strings.Count(m, "/") != 2 || len(m) > 128 {
			bad("Config.Methods: %q is not /service/method of at most 128 bytes", m)
		}
	}
	if cfg.Retention < 0 {
		bad("Config.Retention: %v is negative", cfg.Retention)
	}
	if cfg.WaitMax < 0 {
		bad("Config.WaitMax: %v is negative", cfg.WaitMax)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("grpckey: %w", err)
	}
	if cfg.Store == nil {
		cfg.Store = StoreFinal
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	cfg.Logger = cfg.Logger.With(slog.String(logkey.Component, "grpckey"))
	return &Interceptor[T]{keys, cfg}, nil
}

// Unary is a [grpc.UnaryServerInterceptor]. The context of the handler does not
// end when the client disconnects: the handler finishes, and its answer is
// stored. [idempotency.MarkEffect], [idempotency.DontStore] and
// [idempotency.SetRef] work in the handler.
func (i *Interceptor[T]) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if !slices.Contains(i.cfg.Methods, info.FullMethod) {
		return handler(ctx, req)
	}
	key, err := keyOf(ctx, req)
	switch {
	case err != nil:
		return nil, refusal(codes.InvalidArgument, "KEY_INVALID", err.Error())
	case key == "" && i.cfg.Optional:
		return handler(ctx, req)
	case key == "":
		return nil, refusal(codes.InvalidArgument, "KEY_MISSING", "this method needs a key: "+keyName+" in the metadata, or the field "+requestID)
	}
	request, err := i.request(ctx, key, req, info.FullMethod)
	if err != nil {
		return nil, err
	}
	return i.serve(ctx, request, func(ctx context.Context) (any, error) { return handler(ctx, req) })
}

// Stream is a [grpc.StreamServerInterceptor] that refuses keys: a stream cannot
// be stored, and an ignored key would give no protection.
func (i *Interceptor[T]) Stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if len(metadata.ValueFromIncomingContext(stream.Context(), keyName)) > 0 || slices.Contains(i.cfg.Methods, info.FullMethod) {
		return refusal(codes.InvalidArgument, "KEY_INVALID", "streaming methods do not support keys")
	}
	return handler(srv, stream)
}

// request returns the request to run once. Its error is a status.
func (i *Interceptor[T]) request(ctx context.Context, key string, req any, method string) (idempotency.Request, error) {
	scope, err := i.cfg.Scope(ctx)
	if err == nil && scope == (Scope{}) {
		err = errors.New("Config.Scope returned an empty scope")
	}
	if err != nil {
		i.cfg.Logger.WarnContext(ctx, "call refused: unknown scope", logkey.Operation, method, logkey.Error, err)
		return idempotency.Request{}, refusal(codes.PermissionDenied, "SCOPE_REFUSED", "the owner of this key cannot be determined")
	}
	message, ok := req.(proto.Message)
	if !ok {
		return idempotency.Request{}, refusal(codes.Internal, "INTERNAL", fmt.Sprintf("%T is not a message", req))
	}
	hash, err := i.hash(ctx, method, message)
	if err != nil {
		return idempotency.Request{}, err
	}
	out := idempotency.Request{
		TenantID: scope.Tenant, Operation: method, Key: requestkey.Key(scope.Tenant, scope.Principal, method, key), Retention: i.cfg.Retention, WaitMax: i.cfg.WaitMax,
		Hash: hash,
	}
	if i.cfg.Lease != nil {
		out.Lease = i.cfg.Lease(ctx, method, message)
	}
	if err := out.Validate(); err != nil {
		i.cfg.Logger.ErrorContext(ctx, "call refused", logkey.Operation, method, logkey.Error, err)
		return out, refusal(codes.PermissionDenied, "SCOPE_REFUSED", "the owner of this key cannot be determined")
	}
	return out, nil
}

// hash returns the hash of a request. Its error is a status.
func (i *Interceptor[T]) hash(ctx context.Context, method string, message proto.Message) (idempotency.Hash, error) {
	if i.cfg.Hash != nil {
		hash, err := i.cfg.Hash(ctx, method, message)
		if err != nil {
			i.cfg.Logger.WarnContext(ctx, "call refused: no hash", logkey.Operation, method, logkey.Error, err)
			return "", refusal(codes.InvalidArgument, "REQUEST_INVALID", "the request cannot be compared with its repeats")
		}
		return hash, nil
	}
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		return "", refusal(codes.Internal, "INTERNAL", "the request cannot be compared")
	}
	return idempotency.HashRequest(idempotency.RequestContent{
		Method: "gRPC", Operation: method, ContentType: string(message.ProtoReflect().Descriptor().FullName()), Body: body,
	}), nil
}

// keyOf returns the key of a request, or "" if there is none. Its errors never
// contain the key.
func keyOf(ctx context.Context, req any) (string, error) {
	fromField := ""
	if m, ok := req.(proto.Message); ok {
		field := m.ProtoReflect().Descriptor().Fields().ByName(requestID)
		if field != nil && field.Kind() == protoreflect.StringKind && !field.IsList() {
			fromField = m.ProtoReflect().Get(field).String()
		}
	}
	values := metadata.ValueFromIncomingContext(ctx, keyName)
	key := fromField
	switch {
	case len(values) > 1:
		return "", errors.New("the metadata has several keys")
	case len(values) == 1 && values[0] == "":
		return "", errors.New("the key is empty")
	case len(values) == 1 && fromField != "" && fromField != values[0]:
		return "", errors.New("the keys in the metadata and in " + requestID + " differ")
	case len(values) == 1:
		key = values[0]
	}
	if len(key) > maxKey {
		return "", fmt.Errorf("the key has more than %d bytes", maxKey)
	}
	return key, nil
}

// serve runs the handler, or returns the stored answer.
func (i *Interceptor[T]) serve(ctx context.Context, req idempotency.Request, run func(ctx context.Context) (any, error)) (any, error) {
	detached, started, end := detach(ctx, req.WaitMax > 0)
	defer end()
	var fresh answer
	got, err := i.keys.DoBytes(detached, req, func(ctx context.Context) (idempotency.Answer, error) {
		if err := started(); err != nil {
			return idempotency.Answer{}, err
		}
		fresh.message, fresh.err = run(ctx)
		code := status.Code(fresh.err)
		if !i.cfg.Store(code) {
			return idempotency.Answer{Release: true}, nil
		}
		stored, err := fresh.encode()
		if err != nil {
			i.cfg.Logger.ErrorContext(ctx, "answer cannot be stored", logkey.Operation, req.Operation, logkey.Error, err)
			return idempotency.Answer{Lost: true}, nil //nolint:nilerr // it ran: it must not run again
		}
		return stored, nil
	})
	switch {
	case err != nil:
		return nil, i.statusOf(ctx, req.Operation, err)
	case !got.Replayed:
		return fresh.message, fresh.err
	}
	// Outside of a server there is no header to set.
	_ = grpc.SetHeader(ctx, metadata.Pairs(replayedName, "true"))
	old, err := decode(got.Answer)
	if err != nil {
		i.cfg.Logger.ErrorContext(ctx, "stored answer cannot be decoded", logkey.TenantID, req.TenantID, logkey.Operation, req.Operation, logkey.Key, req.Key, logkey.Error, err)
		return nil, refusal(codes.Internal, "RECORD_CORRUPT", "the call has run, but its stored answer cannot be decoded; it does not run again")
	}
	return old.message, old.err
}

// detach returns a context that does not end when the client disconnects. A
// call that may wait for another one is different: until it starts, a
// disconnect ends its context. started ends that period, and returns an error
// if the call must not start.
func detach(ctx context.Context, waits bool) (detached context.Context, started func() error, end func()) {
	detached = context.WithoutCancel(ctx)
	if !waits {
		return detached, func() error { return nil }, func() {}
	}
	detached, cancel := context.WithCancelCause(detached)
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	return detached, func() error {
		if stop() {
			return nil
		}
		return context.Cause(ctx)
	}, func() { stop(); cancel(nil) }
}
