package linear

import (
	"testing"

	"github.com/waybillhq/waybill/store/memstore"
)

func memory(t *testing.T) *memstore.Store[*memstore.Tx] {
	t.Helper()
	db, err := memstore.New(memstore.Config{Lanes: lanes})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func TestRelayMemory(t *testing.T) {
	seed := seedOf(t)
	for i := range uint64(20) {
		want(t, seed+i, relayModel, runRelay(t, relayOver(t, memory(t).Driver(), faults{}), seed+i))
	}
}

func TestKeysMemory(t *testing.T) {
	seed := seedOf(t)
	for i := range uint64(20) {
		want(t, seed+i, keysModel, runKeys(t, memory(t).Driver().Keys, faults{}, seed+i))
	}
}
