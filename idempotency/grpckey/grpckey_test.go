package grpckey_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/idempotency/grpckey"
	"github.com/waybillhq/waybill/internal/testroles"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	create   = "/shop.Orders/Create"
	list     = "/shop.Orders/List"
	watch    = "/shop.Orders/Watch"
	patience = 30 * time.Second
	// usualLease is the default of idempotency.Config.
	usualLease = 30 * time.Second
)

// request is message CreateRequest { string request_id = 1; string sku = 2; }.
func request(t testing.TB) protoreflect.MessageDescriptor {
	t.Helper()
	field := func(name string, number int32) *descriptorpb.FieldDescriptorProto {
		return &descriptorpb.FieldDescriptorProto{
			Name: proto.String(name), Number: proto.Int32(number), JsonName: proto.String(name),
			Type: descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum(), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
		}
	}
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("shop.proto"), Package: proto.String("shop"), Syntax: proto.String("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{{
			Name: proto.String("CreateRequest"), Field: []*descriptorpb.FieldDescriptorProto{field("request_id", 1), field("sku", 2)},
		}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return file.Messages().Get(0)
}

// env is a server on a real socket, and a client.
type env struct {
	*testing.T
	db   *failing
	conn *grpc.ClientConn
	typ  protoreflect.MessageDescriptor
	runs atomic.Int64
	// The context of each call outside of the interceptor.
	outer chan context.Context
	ended chan struct{} // gets one value when a call of the server ends
	serve func(ctx context.Context, sku string) (proto.Message, error)
}

type failing struct {
	driver.Keys[*memstore.Tx]
	down   atomic.Bool
	damage atomic.Bool
	leases chan time.Duration // of claims, if not nil
}

func (f *failing) ClaimKey(ctx context.Context, c driver.KeyClaim) (store.KeyRecord, bool, error) {
	if f.down.Load() {
		return store.KeyRecord{}, false, errors.New("connection refused")
	}
	if f.leases != nil {
		f.leases <- c.Lease
	}
	r, ok, err := f.Keys.ClaimKey(ctx, c)
	if f.damage.Load() {
		r.Result = []byte{0xff}
	}
	return r, ok, err
}

func newEnv(t *testing.T, cfg grpckey.Config) *env {
	t.Helper()
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	b := &env{T: t, db: &failing{Keys: db.Driver().Keys}, typ: request(t), outer: make(chan context.Context, 1000), ended: make(chan struct{}, 1)}
	b.serve = func(_ context.Context, sku string) (proto.Message, error) {
		return wrapperspb.String("order of " + sku), nil
	}
	keys, err := idempotency.New[*memstore.Tx](testroles.Of[*memstore.Tx](b.db), idempotency.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Scope == nil {
		cfg.Scope = grpckey.Unscoped
	}
	cfg.Methods = []string{create}
	once, err := grpckey.New(keys, cfg)
	if err != nil {
		t.Fatal(err)
	}
	watched := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		select {
		case b.outer <- ctx:
		default: // only the first ones are kept
		}
		defer func() {
			select {
			case b.ended <- struct{}{}:
			default:
			}
		}()
		return handler(ctx, req)
	}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(watched, once.Unary), grpc.ChainStreamInterceptor(once.Stream))
	unary := func(method string) grpc.MethodHandler {
		return func(_ any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			in := dynamicpb.NewMessage(b.typ)
			if err := dec(in); err != nil {
				return nil, err
			}
			return interceptor(ctx, in, &grpc.UnaryServerInfo{FullMethod: method}, func(ctx context.Context, _ any) (any, error) {
				b.runs.Add(1)
				return b.serve(ctx, in.Get(b.typ.Fields().ByName("sku")).String())
			})
		}
	}
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "shop.Orders", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Create", Handler: unary(create)}, {MethodName: "List", Handler: unary(list)}},
		Streams: []grpc.StreamDesc{{StreamName: "Watch", ServerStreams: true, Handler: func(_ any, s grpc.ServerStream) error {
			return s.SendMsg(wrapperspb.String("seen"))
		}}},
	}, b)
	socket, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a test's own server
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(socket) })
	b.conn, err = grpc.NewClient(socket.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = b.conn.Close()
		server.Stop()
		wg.Wait()
	})
	return b
}

// call calls a method with metadata, and returns the answer and whether it is a
// replay.
func (b *env) call(method, id, sku string, md ...string) (text string, replayed bool, err error) {
	in := dynamicpb.NewMessage(b.typ)
	in.Set(b.typ.Fields().ByName("sku"), protoreflect.ValueOfString(sku))
	if id != "" {
		in.Set(b.typ.Fields().ByName("request_id"), protoreflect.ValueOfString(id))
	}
	var out wrapperspb.StringValue
	var header metadata.MD
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(b.Context(), md...), patience)
	defer cancel()
	err = b.conn.Invoke(ctx, method, in, &out, grpc.Header(&header))
	return out.Value, strings.Join(header.Get("idempotent-replayed"), ",") == "true", err
}

func (b *env) want(err error, code codes.Code, reason string) {
	b.Helper()
	if status.Code(err) != code || detail[*errdetails.ErrorInfo](err).GetReason() != reason {
		b.Errorf("%v, %v; want %v %s", err, status.Convert(err).Details(), code, reason)
	}
}

func (b *env) wantRuns(n int64) {
	b.Helper()
	if b.runs.Load() != n {
		b.Errorf("the handler ran %d times, want %d", b.runs.Load(), n)
	}
}

func detail[D proto.Message](err error) (found D) {
	for _, d := range status.Convert(err).Details() {
		if m, ok := d.(D); ok {
			return m
		}
	}
	return found
}

func TestReplay(t *testing.T) {
	b := newEnv(t, grpckey.Config{})
	for name, md := range map[string][]string{"metadata": {"idempotency-key", "m"}, "request_id": nil, "both": {"idempotency-key", "b"}} {
		id := map[string]string{"request_id": "r", "both": "b"}[name]
		before := b.runs.Load()
		for try := range 3 {
			text, replayed, err := b.call(create, id, "A-1", md...)
			if err != nil || text != "order of A-1" || replayed != (try > 0) {
				t.Errorf("%s: %q, %t, %v", name, text, replayed, err)
			}
		}
		b.wantRuns(before + 1)
		_, _, err := b.call(create, id, "A-2", md...)
		b.want(err, codes.InvalidArgument, "KEY_REUSED")
	}
	for range 2 { // others pass through
		if _, replayed, err := b.call(list, "r", "A-1"); replayed || err != nil {
			t.Error(replayed, err)
		}
	}
	b.wantRuns(5)
}

func TestMissing(t *testing.T) {
	b := newEnv(t, grpckey.Config{})
	_, _, err := b.call(create, "", "A-1")
	b.want(err, codes.InvalidArgument, "KEY_MISSING")
	for name, md := range map[string][]string{
		"two": {"idempotency-key", "a", "idempotency-key", "b"}, "empty": {"idempotency-key", ""}, "long": {"idempotency-key", strings.Repeat("a", 256)},
	} {
		_, _, err := b.call(create, "", name, md...)
		b.want(err, codes.InvalidArgument, "KEY_INVALID")
	}
	_, _, err = b.call(create, "a", "A-1", "idempotency-key", "b")
	b.want(err, codes.InvalidArgument, "KEY_INVALID")
	b.wantRuns(0)
	optional := newEnv(t, grpckey.Config{Optional: true})
	for range 2 {
		if _, _, err := optional.call(create, "", "A-1"); err != nil {
			t.Error(err)
		}
	}
	optional.wantRuns(2)
	for range 2 { // a key counts nevertheless
		if _, _, err := optional.call(create, "", "A-1", "idempotency-key", strings.Repeat("a", 255)); err != nil {
			t.Error(err)
		}
	}
	optional.wantRuns(3)
}

func TestInFlight(t *testing.T) {
	b := newEnv(t, grpckey.Config{})
	reached, open := make(chan struct{}), make(chan struct{})
	b.serve = func(ctx context.Context, _ string) (proto.Message, error) {
		close(reached)
		<-open
		return wrapperspb.String("done"), ctx.Err()
	}
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		left <- b.conn.Invoke(metadata.AppendToOutgoingContext(ctx, "idempotency-key", "k"), create, dynamicpb.NewMessage(b.typ), &wrapperspb.StringValue{})
	}()
	<-reached
	_, _, err := b.call(create, "", "", "idempotency-key", "k")
	b.want(err, codes.Aborted, "IN_PROGRESS")
	if d := detail[*errdetails.RetryInfo](err).GetRetryDelay().AsDuration(); d <= 0 || d > 30*time.Second {
		t.Errorf("RetryInfo: %v", d)
	}
	leave() // the client does not wait, but the handler finishes
	if err := <-left; status.Code(err) != codes.Canceled {
		t.Error(err)
	}
	select { // the server has noticed
	case <-(<-b.outer).Done():
	case <-time.After(patience):
		t.Fatal("the server does not notice that the client has gone")
	}
	close(open)
	deadline := time.Now().Add(patience)
	for {
		text, replayed, err := b.call(create, "", "", "idempotency-key", "k")
		if err == nil && replayed && text == "done" {
			break
		}
		if status.Code(err) != codes.Aborted || time.Now().After(deadline) {
			t.Fatal(text, replayed, err)
		}
	}
	b.wantRuns(1)
}

func TestStoreDown(t *testing.T) {
	b := newEnv(t, grpckey.Config{})
	b.db.down.Store(true)
	_, _, err := b.call(create, "k", "A-1")
	b.want(err, codes.Unavailable, "STORE_UNAVAILABLE")
	if detail[*errdetails.RetryInfo](err) == nil {
		t.Error("no RetryInfo")
	}
	b.wantRuns(0)
	b.db.down.Store(false)
	if _, _, err := b.call(create, "k", "A-1"); err != nil {
		t.Error(err)
	}
	b.db.damage.Store(true)
	_, _, err = b.call(create, "k", "A-1")
	b.want(err, codes.Internal, "RECORD_CORRUPT")
	b.wantRuns(1)
}

func TestUnaryOnly(t *testing.T) {
	b := newEnv(t, grpckey.Config{})
	for _, key := range []string{"", "k"} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if key != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "idempotency-key", key)
		}
		s, err := b.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, watch)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(s.SendMsg(&wrapperspb.StringValue{}), s.CloseSend()); err != nil {
			t.Fatal(err)
		}
		var out wrapperspb.StringValue
		err = s.RecvMsg(&out)
		if key == "" && (err != nil || out.Value != "seen") {
			t.Error(out.Value, err)
		}
		if key != "" {
			b.want(err, codes.InvalidArgument, "KEY_INVALID")
		}
	}
}

func TestErrorsByTheirCode(t *testing.T) {
	b := newEnv(t, grpckey.Config{})
	b.serve = func(_ context.Context, sku string) (proto.Message, error) {
		var code codes.Code
		if _, err := fmt.Sscan(sku, (*uint32)(&code)); err != nil {
			return nil, err
		}
		return nil, status.Error(code, "as asked")
	}
	for code, stored := range map[codes.Code]bool{
		codes.InvalidArgument: true, codes.NotFound: true, codes.AlreadyExists: true, codes.FailedPrecondition: true, codes.OutOfRange: true,
		codes.Unauthenticated: false, codes.PermissionDenied: false, codes.ResourceExhausted: false, codes.Aborted: false, codes.Internal: false,
		codes.Unavailable: false, codes.Unknown: false, codes.Canceled: false, codes.DeadlineExceeded: false, codes.DataLoss: false,
	} {
		sku := fmt.Sprint(uint32(code))
		for try := range 2 {
			_, replayed, err := b.call(create, sku, sku)
			if status.Code(err) != code || status.Convert(err).Message() != "as asked" || replayed != (stored && try > 0) {
				t.Errorf("%v: %v, replayed %t", code, err, replayed)
			}
		}
	}
}

func TestEffectsRefsAndLargeAnswers(t *testing.T) {
	b := newEnv(t, grpckey.Config{})
	b.serve = func(ctx context.Context, sku string) (proto.Message, error) {
		if sku == "effect" {
			idempotency.MarkEffect(ctx)
			return nil, status.Error(codes.Internal, "halfway")
		}
		idempotency.SetRef(ctx, "ord_1")
		return wrapperspb.String(strings.Repeat("x", 1<<20+1)), nil
	}
	_, _, err := b.call(create, "e", "effect")
	if status.Convert(err).Message() != "halfway" {
		t.Error(err)
	}
	_, _, err = b.call(create, "e", "effect")
	b.want(err, codes.FailedPrecondition, "OUTCOME_UNCERTAIN")
	if text, _, err := b.call(create, "l", "large"); err != nil || len(text) != 1<<20+1 {
		t.Error(len(text), err)
	}
	_, _, err = b.call(create, "l", "large")
	b.want(err, codes.AlreadyExists, "RESULT_UNAVAILABLE")
	if ref := detail[*errdetails.ResourceInfo](err).GetResourceName(); ref != "ord_1" {
		t.Errorf("the reference is %q", ref)
	}
	b.wantRuns(2)
}

func TestScope(t *testing.T) {
	b := newEnv(t, grpckey.Config{Scope: func(ctx context.Context) (grpckey.Scope, error) {
		caller := strings.Join(metadata.ValueFromIncomingContext(ctx, "caller"), "")
		tenant, principal, ok := strings.Cut(caller, "/")
		if !ok {
			return grpckey.Scope{}, nil
		}
		return grpckey.Scope{Tenant: tenant, Principal: principal}, nil
	}})
	for i, caller := range []string{"a/bc", "ab/c", "abc/", "a/b", "/abc"} {
		if _, replayed, err := b.call(create, "k", "A-1", "caller", caller); replayed || err != nil {
			t.Errorf("%s: %t, %v", caller, replayed, err)
		}
		b.wantRuns(int64(i + 1))
	}
	_, _, err := b.call(create, "k", "A-1")
	b.want(err, codes.PermissionDenied, "SCOPE_REFUSED")
	if _, err := grpckey.New[*memstore.Tx](nil, grpckey.Config{Retention: -1}); err == nil || !strings.Contains(err.Error(), "Scope") ||
		!strings.Contains(err.Error(), "Methods") || !strings.Contains(err.Error(), "keys") || !strings.Contains(err.Error(), "Retention") {
		t.Errorf("not every mistake is named: %v", err)
	}
}

// A client that disconnects while it waits starts nothing; one that stays gets
// the answer.
func TestWaiting(t *testing.T) {
	b := newEnv(t, grpckey.Config{WaitMax: time.Minute})
	reached, open := make(chan struct{}), make(chan struct{})
	b.serve = func(context.Context, string) (proto.Message, error) {
		close(reached)
		<-open
		return wrapperspb.String("done"), nil
	}
	var wg sync.WaitGroup
	for i := range 5 {
		wg.Go(func() {
			if i > 0 {
				<-reached
			}
			if text, replayed, err := b.call(create, "k", "A-1"); text != "done" || replayed != (i > 0) || err != nil {
				t.Error(text, replayed, err)
			}
		})
	}
	<-reached
	ctx, leave := context.WithCancel(metadata.AppendToOutgoingContext(t.Context(), "idempotency-key", "k"))
	leave()
	if err := b.conn.Invoke(ctx, create, dynamicpb.NewMessage(b.typ), &wrapperspb.StringValue{}); status.Code(err) != codes.Canceled {
		t.Error(err)
	}
	close(open)
	wg.Wait()
	b.wantRuns(1)
}

// A client that disconnects while its call waits for another one ends the wait.
func TestWaitingEndsWithTheClient(t *testing.T) {
	b := newEnv(t, grpckey.Config{WaitMax: time.Hour})
	reached, open := make(chan struct{}), make(chan struct{})
	b.serve = func(context.Context, string) (proto.Message, error) {
		close(reached)
		<-open
		return wrapperspb.String("done"), nil
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if text, _, err := b.call(create, "k", "A-1"); text != "done" || err != nil {
			t.Error(text, err)
		}
	})
	<-reached
	<-b.outer
	ctx, leave := context.WithCancel(t.Context())
	in := dynamicpb.NewMessage(b.typ)
	in.Set(b.typ.Fields().ByName("sku"), protoreflect.ValueOfString("A-1"))
	in.Set(b.typ.Fields().ByName("request_id"), protoreflect.ValueOfString("k"))
	wg.Go(func() {
		if err := b.conn.Invoke(ctx, create, in, &wrapperspb.StringValue{}); status.Code(err) != codes.Canceled {
			t.Error(err)
		}
	})
	<-b.outer // it has reached the server
	leave()
	select {
	case <-b.ended:
	case <-time.After(patience):
		t.Error("the call of a client that has gone still waits")
	}
	close(open)
	wg.Wait()
	b.wantRuns(1)
}

// TestConfigErrors: the error of New lists every invalid field, in the order of
// the fields.
// TestOwnHash: requests with equal hashes are repeats, whatever else differs.
func TestOwnHash(t *testing.T) {
	b := newEnv(t, grpckey.Config{Hash: func(_ context.Context, method string, req proto.Message) (idempotency.Hash, error) {
		m := req.ProtoReflect()
		sku := m.Get(m.Descriptor().Fields().ByName("sku")).String()
		if sku == "" {
			return "", errors.New("no sku")
		}
		return idempotency.HashJSON(method + sku[:1]) // the rest of it has no meaning
	}})
	if text, replayed, err := b.call(create, "k", "a at 10:00"); text != "order of a at 10:00" || replayed || err != nil {
		t.Errorf("%q, %v, %v", text, replayed, err)
	}
	if text, replayed, err := b.call(create, "k", "a at 10:01"); text != "order of a at 10:00" || !replayed || err != nil {
		t.Errorf("a repeat with another time: %q, %v, %v", text, replayed, err)
	}
	_, _, err := b.call(create, "k", "b")
	b.want(err, codes.InvalidArgument, "KEY_REUSED")
	_, _, err = b.call(create, "other", "")
	b.want(err, codes.InvalidArgument, "REQUEST_INVALID")
	b.wantRuns(1)
}

// TestLeaseOfACall: Config.Lease is that of the claim; 0 is that of the keys.
func TestLeaseOfACall(t *testing.T) {
	b := newEnv(t, grpckey.Config{Lease: func(_ context.Context, method string, req proto.Message) time.Duration {
		m := req.ProtoReflect()
		if method == create && m.Get(m.Descriptor().Fields().ByName("sku")).String() == "slow" {
			return 7 * time.Minute
		}
		return 0
	}})
	b.db.leases = make(chan time.Duration, 2)
	for _, c := range []struct {
		sku  string
		want time.Duration
	}{{"slow", 7 * time.Minute}, {"quick", usualLease}} {
		if _, _, err := b.call(create, c.sku, c.sku); err != nil {
			t.Error(err)
		}
		if got := <-b.db.leases; got != c.want {
			t.Errorf("the lease of %s is %v, want %v", c.sku, got, c.want)
		}
	}
}

func TestConfigErrors(t *testing.T) {
	_, err := grpckey.New[*memstore.Tx](nil, grpckey.Config{
		Methods: []string{"Create", "s/m/", "/s/m/n", "/s/" + strings.Repeat("m", 125), "/s/" + strings.Repeat("m", 126), "/s/m"}, Retention: -1, WaitMax: -2,
	})
	want := `grpckey: keys is nil
Config.Scope: nil; set it, or use grpckey.Unscoped
Config.Methods: "Create" is not /service/method of at most 128 bytes
Config.Methods: "s/m/" is not /service/method of at most 128 bytes
Config.Methods: "/s/m/n" is not /service/method of at most 128 bytes
Config.Methods: "/s/` + strings.Repeat("m", 126) + `" is not /service/method of at most 128 bytes
Config.Retention: -1ns is negative
Config.WaitMax: -2ns is negative`
	if err == nil || err.Error() != want {
		t.Errorf("the error is\n%v\nwant\n%s", err, want)
	}
}
