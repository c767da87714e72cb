package payload

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/waybillhq/waybill"
)

// Key is a secret of [Encrypt]. Its ID is recorded with each event.
type Key struct {
	ID string
	// Secret has 32 bytes, from a random source: openssl rand 32.
	Secret []byte
}

// Encrypt encrypts payloads with AES-256-GCM under the current key. Payloads
// that were encrypted under one of the older keys can be opened, too.
//
// HKDF derives the encryption key of each event from the secret and the event's
// id, so one secret serves any number of events. The event's id, type and
// tenant are authenticated: a payload that was moved to another event does not
// open.
func Encrypt(current Key, older ...Key) (Transform, error) {
	e := &encryption{current: current.ID, secrets: map[string][]byte{}}
	for _, key := range append([]Key{current}, older...) {
		switch {
		case key.ID == "":
			return nil, errors.New("payload: encrypt: a key has no ID")
		case len(key.ID) > 64:
			return nil, fmt.Errorf("payload: encrypt: the ID of key %q has more than 64 bytes", key.ID)
		case len(key.Secret) != 32:
			return nil, fmt.Errorf("payload: encrypt: the secret of key %q has %d bytes, and AES-256 needs 32", key.ID, len(key.Secret))
		case e.secrets[key.ID] != nil:
			return nil, fmt.Errorf("payload: encrypt: the key %q is listed twice", key.ID)
		}
		e.secrets[key.ID] = append([]byte(nil), key.Secret...)
	}
	return e, nil
}

type encryption struct {
	current string
	secrets map[string][]byte
}

// Name returns "aes-256-gcm".
func (*encryption) Name() string { return "aes-256-gcm" }

// Seal encrypts data; the nonce is in front of the result.
func (e *encryption) Seal(_ context.Context, ev waybill.Event, data []byte) ([]byte, Params, bool, error) {
	aead, err := e.aead(e.current, ev.ID)
	if err != nil {
		return nil, nil, false, err
	}
	return aead.Seal(nil, nil, data, authenticated(ev)), Params{"key": e.current}, true, nil
}

// Open decrypts data. A payload that was changed is a permanent error; a key
// that the consumer does not have is not, because a deployment can bring it.
func (e *encryption) Open(_ context.Context, ev waybill.Event, params Params, sealed []byte) ([]byte, error) {
	id := params["key"]
	if e.secrets[id] == nil {
		return nil, fmt.Errorf("the key %q is not configured; add it to the older keys of payload.Encrypt", id)
	}
	aead, err := e.aead(id, ev.ID)
	if err != nil {
		return nil, err
	}
	data, err := aead.Open(nil, nil, sealed, authenticated(ev))
	if err != nil {
		return nil, waybill.Permanent(fmt.Errorf("the payload was changed, belongs to another event, or was encrypted with another secret under the id %q", id))
	}
	return data, nil
}

func (e *encryption) aead(id string, event waybill.ID) (cipher.AEAD, error) {
	key, err := hkdf.Key(sha256.New, e.secrets[id], event[:], "waybill payload", 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// authenticated are the fields that a payload is bound to, each behind its
// length.
func authenticated(ev waybill.Event) []byte {
	var out []byte
	for _, field := range []string{string(ev.ID[:]), ev.Type, ev.TenantID} {
		out = binary.BigEndian.AppendUint32(out, uint32(len(field)))
		out = append(out, field...)
	}
	return out
}
