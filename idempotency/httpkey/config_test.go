package httpkey_test

import (
	"net/http"
	"testing"

	"github.com/waybillhq/waybill/idempotency/httpkey"
	"github.com/waybillhq/waybill/store/memstore"
)

// TestConfigErrors: the error of New lists every invalid field, in the order of
// the fields.
func TestConfigErrors(t *testing.T) {
	_, err := httpkey.New[*memstore.Tx](nil, httpkey.Config{
		Methods: []string{http.MethodGet, http.MethodPost, ""}, Header: "a b", MinLen: 256, MaxBody: -1, LargeBody: 7, DigestHeader: "c d", MaxResult: -2,
		Headers: []string{"X-Fine", "Date", "x-replayed"}, ReplayedHeader: "X-Replayed", Retention: -3, WaitMax: -4, DocsURL: "not a URL",
	})
	want := `httpkey: keys is nil
Config.Scope: nil; set it, or use httpkey.Unscoped
Config.Methods: GET is a safe method and needs no key
Config.Methods: "" cannot be repeated
Config.Header: "a b" is not a header name
Config.MinLen: 256 is not between 0 and 255
Config.MaxBody: -1 is negative
Config.LargeBody: 7 is neither Refuse nor Bypass
Config.DigestHeader: "c d" is not a header name
Config.MaxResult: -2 is negative
Config.Headers: "Date" must not be stored
Config.Headers: "X-Replayed" must not be stored
Config.Retention: -3ns is negative
Config.WaitMax: -4ns is negative
Config.DocsURL: not a URL`
	if err == nil || err.Error() != want {
		t.Errorf("the error is\n%v\nwant\n%s", err, want)
	}
	_, err = httpkey.New(newKeys(t), httpkey.Config{Scope: httpkey.Unscoped, Headers: []string{"Idempotent-Replayed"}, ReplayedHeader: "a b", Retention: -1})
	want = "httpkey: Config.ReplayedHeader: \"a b\" is not a header name\nConfig.Retention: -1ns is negative"
	if err == nil || err.Error() != want {
		t.Errorf("the error is\n%v\nwant\n%s", err, want)
	}
	// The default name of the header is excluded as well.
	_, err = httpkey.New(newKeys(t), httpkey.Config{Scope: httpkey.Unscoped, Headers: []string{"idempotent-replayed"}})
	if err == nil || err.Error() != "httpkey: Config.Headers: \"Idempotent-Replayed\" must not be stored" {
		t.Errorf("the error is %v", err)
	}
}
