package grpckey

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/internal/logkey"
)

// Content types of stored results: a message with its type name, or a status.
const (
	messageType = "application/vnd.waybill.grpc-message.v1"
	statusType  = "application/vnd.waybill.grpc-status.v1"
)

// answer is the result of a handler.
type answer struct {
	message any
	err     error
}

func (a answer) encode() (idempotency.Answer, error) {
	if a.err != nil {
		body, err := proto.Marshal(status.Convert(a.err).Proto())
		return idempotency.Answer{Body: body, ContentType: statusType}, err
	}
	message, ok := a.message.(proto.Message)
	if !ok {
		return idempotency.Answer{}, fmt.Errorf("%T is not a message", a.message)
	}
	packed, err := anypb.New(message)
	if err != nil {
		return idempotency.Answer{}, err
	}
	body, err := proto.Marshal(packed)
	return idempotency.Answer{Body: body, ContentType: messageType}, err
}

func decode(stored idempotency.Answer) (answer, error) {
	switch stored.ContentType {
	case statusType:
		var s spb.Status
		if err := proto.Unmarshal(stored.Body, &s); err != nil {
			return answer{}, err
		}
		err := status.ErrorProto(&s)
		if err == nil {
			return answer{}, errors.New("the stored status is OK")
		}
		return answer{err: err}, nil
	case messageType:
		var packed anypb.Any
		if err := proto.Unmarshal(stored.Body, &packed); err != nil {
			return answer{}, err
		}
		message, err := packed.UnmarshalNew()
		return answer{message: message}, err
	}
	return answer{}, errors.New("the stored result is not a gRPC result")
}

// reasonDomain is the domain of the reasons in ErrorInfo.
const reasonDomain = "github.com/waybillhq/waybill"

// refusal returns a status with a machine-readable reason.
func refusal(code codes.Code, reason, text string, details ...protoadapt.MessageV1) error {
	info := &errdetails.ErrorInfo{Reason: reason, Domain: reasonDomain}
	s := status.New(code, text)
	with, err := s.WithDetails(append([]protoadapt.MessageV1{info}, details...)...)
	if err != nil {
		return s.Err()
	}
	return with.Err()
}

// statusOf returns the status for an error of the keys.
func (i *Interceptor[T]) statusOf(ctx context.Context, operation string, err error) error {
	var busy *idempotency.InProgressError
	var gone *idempotency.NoResultError
	again := func(d time.Duration) protoadapt.MessageV1 {
		return &errdetails.RetryInfo{RetryDelay: durationpb.New(d)}
	}
	switch {
	case errors.As(err, &busy):
		return refusal(codes.Aborted, "IN_PROGRESS", "a call with this key is in progress", again(busy.RetryAfter))
	case errors.Is(err, waybill.ErrInProgress), errors.Is(err, waybill.ErrLeaseLost):
		return refusal(codes.Aborted, "IN_PROGRESS", "a call with this key is in progress", again(time.Second))
	case errors.Is(err, waybill.ErrConflict):
		return refusal(codes.InvalidArgument, "KEY_REUSED", "this key was already used for a different request")
	case errors.Is(err, idempotency.ErrUnresolved):
		return refusal(codes.FailedPrecondition, "OUTCOME_UNCERTAIN", "an earlier call with this key failed after an effect; it does not run again until an operator has resolved it")
	case errors.As(err, &gone):
		details := []protoadapt.MessageV1{}
		if gone.Ref != "" {
			details = append(details, &errdetails.ResourceInfo{ResourceName: gone.Ref})
		}
		return refusal(codes.AlreadyExists, "RESULT_UNAVAILABLE", "the call has run, but its answer is not stored; it does not run again", details...)
	case errors.Is(err, idempotency.ErrStore), errors.Is(err, waybill.ErrUncertain):
		return refusal(codes.Unavailable, "STORE_UNAVAILABLE", "the key could not be looked up", again(time.Second))
	case ctx.Err() != nil:
		// The client left while the call waited.
		return status.FromContextError(ctx.Err()).Err()
	}
	i.cfg.Logger.ErrorContext(ctx, "call failed", logkey.Operation, operation, logkey.Error, err)
	return refusal(codes.Internal, "INTERNAL", "the outcome of the call is unknown")
}
