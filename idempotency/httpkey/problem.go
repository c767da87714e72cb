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

// problem is a refusal: problem details of RFC 9457, with three members of ours. None ever has the key.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	// Code is the last part of Type, for programs.
	Code string `json:"code"`
	// OperationState says where the operation stands: not_started, processing, succeeded, uncertain or unknown.
	OperationState string `json:"operation_state,omitempty"`
	// ResultRef names what the operation made.
	ResultRef string `json:"result_ref,omitempty"`

	retryAfter time.Duration
}

// soon is what a client is asked to wait if nothing better is known.
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
		Detail: "This is wrong with the key: " + why.Error() + ".",
	}
}

func refused(status int, code, title, detail string) problem {
	return problem{Title: title, Status: status, Code: code, Detail: detail, OperationState: "not_started"}
}

var (
	bodyTooLarge = refused(http.StatusRequestEntityTooLarge, "body-too-large", "Body is too large",
		"The body is larger than what can be compared with that of a repeat.")
	bodyUnreadable = refused(http.StatusBadRequest, "body-unreadable", "Body is incomplete", "The body ended before its end.")
	scopeRefused   = refused(http.StatusForbidden, "scope-refused", "Caller is unknown", "It cannot be told whose key this is.")
	methodRefused  = refused(http.StatusMethodNotAllowed, "method-not-allowed", "Method is not allowed", "This operation has other methods.")
	replayRefused  = problem{
		Title: "Answer is not for you any more", Status: http.StatusForbidden, Code: "replay-refused", OperationState: "succeeded",
		Detail: "The operation has run, and you are not allowed to see its answer.",
	}
	broken = problem{
		Title: "Internal error", Status: http.StatusInternalServerError, Code: "internal-error", OperationState: "unknown",
		Detail: "It cannot be told what became of the operation.",
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
		Detail: "There is a record of this key, and it is damaged. Nothing runs.",
	}
)

// problemOf returns what a client is told about a refusal of the keys.
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
			Detail: "A request with this key and another content came before. A new operation needs a new key.",
		}
	case errors.Is(err, idempotency.ErrUnresolved):
		return problem{
			Title: "Outcome is uncertain", Status: http.StatusConflict, Code: "outcome-uncertain", OperationState: "uncertain",
			Detail: "An earlier request with this key failed halfway. It does not run again until somebody has looked at it.",
		}
	case errors.As(err, &gone):
		p := problem{
			Title: "Answer was not kept", Status: http.StatusConflict, Code: "result-unavailable", OperationState: "succeeded", ResultRef: gone.Ref,
			Detail: "The operation has run, but its answer was a stream, or too large to be kept. It does not run again.",
		}
		if gone.Expired {
			p.Code, p.Title, p.Detail = "result-expired", "Answer has expired", "The operation has run, but its answer is no longer kept. It does not run again."
		}
		return p
	case errors.Is(err, idempotency.ErrCorrupt):
		return unreadable
	case errors.Is(err, waybill.ErrUncertain):
		return unavailable("unknown", "It is not known yet whether the operation was committed. A repeat with the same key finds out.")
	case errors.Is(err, idempotency.ErrStore):
		return unavailable("not_started", "The key could not be looked up, so nothing was done.")
	}
	return broken
}

func inProgress(left time.Duration) problem {
	return problem{
		Title: "Operation is in progress", Status: http.StatusConflict, Code: "in-progress", OperationState: "processing",
		Detail: "A request with this key is being worked on.", retryAfter: max(left, soon),
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
		panic(err) // strings and a number: it cannot fail
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	h.Add("Link", "<"+c.DocsURL+`>; rel="describedby"; type="text/html"`)
	if p.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(p.retryAfter.Seconds()))))
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(body) // a client that has gone does not matter
}
