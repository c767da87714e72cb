package inbox

import (
	"errors"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// StoredEvent returns the event that a group stored with a record because
// [Options.StoreEvent] is set. It is for programs that have the records but not
// the groups, such as the daemon.
func StoredEvent(rec *store.InboxRecord) (waybill.Event, error) {
	if len(rec.Stored) == 0 {
		return waybill.Event{}, errors.New("inbox: the record has no stored event")
	}
	return decodeKept(rec.Stored)
}
