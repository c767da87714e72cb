package idempotency_test

import (
	"strings"
	"testing"

	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/store/memstore"
)

// TestConfigErrors: the error of New lists every invalid field, in the order of
// the fields.
func TestConfigErrors(t *testing.T) {
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	cfg := idempotency.Config{
		Retention: -1, ResultRetention: -2, Lease: -3, MaxExecution: -1, MaxResult: -1, PurgeInterval: -1, PurgeBatchSize: -4, CountInterval: -1,
	}
	want := `idempotency: Config.Retention: -1ns is negative
Config.ResultRetention: -2ns is negative
Config.Lease: -3ns is negative
Config.PurgeBatchSize: -4 is negative`
	if _, err := idempotency.New(db, cfg); err == nil || err.Error() != want {
		t.Errorf("the error of New is\n%v\nwant\n%s", err, want)
	}
	if err := cfg.Validate(); err == nil || err.Error() != want {
		t.Errorf("the error of Validate is\n%v\nwant\n%s", err, want)
	}
}

// TestRequestErrors: the error of Validate lists every invalid field, in the
// order of the fields.
func TestRequestErrors(t *testing.T) {
	long := strings.Repeat("x", 256)
	err := idempotency.Request{TenantID: long, Operation: long, Key: "\x00", Hash: "h", Retention: -1, WaitMax: -2}.Validate()
	want := `idempotency: Request.TenantID: 256 bytes, more than the maximum of 64
Request.Operation: 256 bytes, more than the maximum of 128
Request.Key: not valid UTF-8 without NUL
Request.Hash: not a hash; see HashJSON
Request.Retention: -1ns is negative
Request.WaitMax: -2ns is negative`
	if err == nil || err.Error() != want {
		t.Errorf("the error is\n%v\nwant\n%s", err, want)
	}
	want = `idempotency: Request.Operation: empty
Request.Key: empty
Request.Hash: empty; without a hash, another request with the same key would get the same answer`
	if err := (idempotency.Request{}).Validate(); err == nil || err.Error() != want {
		t.Errorf("the error is\n%v\nwant\n%s", err, want)
	}
}
