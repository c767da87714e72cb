package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The headers of the Standard Webhooks specification.
const (
	HeaderID        = "Webhook-Id"
	HeaderTimestamp = "Webhook-Timestamp"
	HeaderSignature = "Webhook-Signature"
)

const (
	secretPrefix    = "whsec_"
	signaturePrefix = "v1,"
	// Limits of the specification for a symmetric secret, in bytes.
	minSecret, maxSecret = 24, 64
)

// ErrSignature reports a request that was not signed with a known secret, or
// whose signature is too old.
var ErrSignature = errors.New("webhook: signature not valid")

// key is a decoded secret. Formatting it does not show the secret.
type key []byte

func (key) String() string   { return "(secret)" }
func (key) GoString() string { return "(secret)" }

// parseSecrets decodes "whsec_" and base64; the prefix is optional. Errors name
// the config type and do not show the secret.
func parseSecrets(config string, secrets []string) ([]key, error) {
	var errs []error
	keys := make([]key, 0, len(secrets))
	for i, text := range secrets {
		raw, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(strings.TrimSpace(text), secretPrefix))
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s.Secrets[%d]: not %q and base64", config, i, secretPrefix))
		case len(raw) < minSecret || len(raw) > maxSecret:
			errs = append(errs, fmt.Errorf("%s.Secrets[%d]: %d bytes, want %d to %d", config, i, len(raw), minSecret, maxSecret))
		default:
			keys = append(keys, raw)
		}
	}
	return keys, errors.Join(errs...)
}

func (k key) sign(id string, at int64, body []byte) []byte {
	mac := hmac.New(sha256.New, k)
	mac.Write([]byte(id))
	mac.Write([]byte{'.'})
	mac.Write(strconv.AppendInt(nil, at, 10))
	mac.Write([]byte{'.'})
	mac.Write(body)
	return mac.Sum(nil)
}

// signature returns the header for a body: one signature per key, so that a
// receiver may have either while keys are rotated.
func signature(keys []key, id string, at int64, body []byte) string {
	parts := make([]string, len(keys))
	for i, k := range keys {
		parts[i] = signaturePrefix + base64.StdEncoding.EncodeToString(k.sign(id, at, body))
	}
	return strings.Join(parts, " ")
}

// verify checks that a request was signed with one of the keys, within the
// tolerance of now. The time is signed as well, so an old request cannot be
// made new.
func verify(keys []key, h http.Header, body []byte, now time.Time, tolerance time.Duration) error {
	id, stamp, signatures := h.Get(HeaderID), h.Get(HeaderTimestamp), h.Get(HeaderSignature)
	if id == "" || stamp == "" || signatures == "" {
		return fmt.Errorf("%w: %s, %s or %s is missing", ErrSignature, HeaderID, HeaderTimestamp, HeaderSignature)
	}
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil {
		return fmt.Errorf("%w: %s is not a number of seconds", ErrSignature, HeaderTimestamp)
	}
	if age := now.Sub(time.Unix(seconds, 0)); age > tolerance || age < -tolerance {
		return fmt.Errorf("%w: %v old, at most %v", ErrSignature, age.Round(time.Second), tolerance)
	}
	for part := range strings.SplitSeq(signatures, " ") {
		text, ok := strings.CutPrefix(part, signaturePrefix)
		if !ok {
			continue // another version
		}
		given, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			continue
		}
		for _, k := range keys {
			if hmac.Equal(given, k.sign(id, seconds, body)) {
				return nil
			}
		}
	}
	return ErrSignature
}
