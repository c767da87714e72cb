package httpkey

import (
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/idempotency"
)

// problem is a refusal: problem details of RFC 9457, with three additional
// members. It never contains the key.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	// Code is the last part of Type, for programs.
	Code string `json:"code"`
	// OperationState is the state of the operation: not_started, processing,
	// succeeded, uncertain or unknown.
	OperationState string `json:"operation_state,omitempty"`
	// ResultRef is the reference of the operation's result.
	ResultRef string `json:"result_ref,omitempty"`

	retryAfter time.Duration
}

// soon is the default of Retry-After.
const soon = time.Second

func keyMissing(header string) problem {
	return problem{
		Title: "Idempotency key is missing", Status: http.StatusBadRequest, Code: "key-missing", OperationState: "not_started",
		Detail: "This operation needs the header " + header + " with a key that is new for every operation and the same for every repeat of it.",
	}
}

func keyInvalid(why error) problem {
	return problem{
		Title: "Idempotency key is invalid", Status: http.StatusBadRequest, Code: "key-invalid", OperationState: "not_started",
		Detail: "The key is invalid: " + why.Error() + ".",
	}
}

func refused(status int, code, title, detail string) problem {
	return problem{Title: title, Status: status, Code: code, Detail: detail, OperationState: "not_started"}
}

var (
	bodyTooLarge = refused(http.StatusRequestEntityTooLarge, "body-too-large", "Body is too large",
		"The body is larger than the limit for comparing repeats.")
	bodyUnreadable = refused(http.StatusBadRequest, "body-unreadable", "Body is incomplete", "The body ended early.")
	hashRefused    = refused(http.StatusBadRequest, "content-refused", "Content cannot be compared", "The content of the request is not as this operation expects it.")
	scopeRefused   = refused(http.StatusForbidden, "scope-refused", "Caller is unknown", "The owner of this key cannot be determined.")
	methodRefused  = refused(http.StatusMethodNotAllowed, "method-not-allowed", "Method is not allowed", "This operation does not support this method.")
	replayRefused  = problem{
		Title: "Access to the answer is denied", Status: http.StatusForbidden, Code: "replay-refused", OperationState: "succeeded",
		Detail: "The operation has run, but you are not allowed to read its answer.",
	}
	broken = problem{
		Title: "Internal error", Status: http.StatusInternalServerError, Code: "internal-error", OperationState: "unknown",
		Detail: "The outcome of the operation is unknown.",
	}
	failed = problem{
		Title: "Internal error", Status: http.StatusInternalServerError, Code: "operation-failed", OperationState: "not_started",
		Detail: "The operation failed and was rolled back. The same key may be used again.",
	}
	corrupt = problem{
		Title: "Stored answer cannot be read", Status: http.StatusInternalServerError, Code: "record-corrupt", OperationState: "succeeded",
		Detail: "The operation has run, but its stored answer is damaged. It does not run again.",
	}
	unreadable = problem{
		Title: "Record cannot be read", Status: http.StatusInternalServerError, Code: corrupt.Code, OperationState: "unknown",
		Detail: "The record of this key is damaged. Nothing runs.",
	}
)

// problemOf returns the problem for an error of the keys.
func problemOf(err error) problem {
	var busy *idempotency.InProgressError
	var gone *idempotency.NoResultError
	switch {
	case errors.As(err, &busy):
		return inProgress(busy.RetryAfter)
	case errors.Is(err, waybill.ErrInProgress), errors.Is(err, waybill.ErrLeaseLost):
		return inProgress(soon)
	case errors.Is(err, waybill.ErrConflict):
		return problem{
			Title: "Idempotency key was used for another request", Status: http.StatusUnprocessableEntity, Code: "key-reused",
			Detail: "This key was already used for a request with different content. A new operation needs a new key.",
		}
	case errors.Is(err, idempotency.ErrUnresolved):
		return problem{
			Title: "Outcome is uncertain", Status: http.StatusConflict, Code: "outcome-uncertain", OperationState: "uncertain",
			Detail: "An earlier request with this key failed after an effect. It does not run again until an operator has resolved it.",
		}
	case errors.As(err, &gone):
		p := problem{
			Title: "Answer was not stored", Status: http.StatusConflict, Code: "result-unavailable", OperationState: "succeeded", ResultRef: gone.Ref,
			Detail: "The operation has run, but its answer was a stream, or too large to be stored. It does not run again.",
		}
		if gone.Expired {
			p.Code, p.Title, p.Detail = "result-expired", "Answer has expired", "The operation has run, but its answer is no longer stored. It does not run again."
		}
		return p
	case errors.Is(err, idempotency.ErrCorrupt):
		return unreadable
	case errors.Is(err, waybill.ErrUncertain):
		return unavailable("unknown", "It is not yet known whether the operation was committed. Repeat the request with the same key.")
	case errors.Is(err, idempotency.ErrStore):
		return unavailable("not_started", "The key could not be looked up, so nothing was done.")
	}
	return broken
}

func inProgress(left time.Duration) problem {
	return problem{
		Title: "Operation is in progress", Status: http.StatusConflict, Code: "in-progress", OperationState: "processing",
		Detail: "A request with this key is being processed.", retryAfter: max(left, soon),
	}
}

func unavailable(state, detail string) problem {
	return problem{
		Title: "Try again", Status: http.StatusServiceUnavailable, Code: "store-unavailable", OperationState: state, Detail: detail, retryAfter: soon,
	}
}

// refuse sends a problem.
func (c *Config) refuse(w http.ResponseWriter, p problem) {
	p.Type = c.DocsURL + "#" + p.Code
	body, err := json.Marshal(p)
	if err != nil {
		panic(err) // strings and a number: encoding cannot fail
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	h.Add("Link", "<"+c.DocsURL+`>; rel="describedby"; type="text/html"`)
	if p.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(p.retryAfter.Seconds()))))
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(body) // a disconnected client does not matter
}
