package inbox

import (
	"errors"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// StoredEvent returns the event that a group stored with a record because its [Options.StoreEvent] is set: for programs that have the records and not the
// groups, such as the daemon.
func StoredEvent(rec *store.InboxRecord) (waybill.Event, error) {
	if len(rec.Stored) == 0 {
		return waybill.Event{}, errors.New("inbox: the event was not kept with its record")
	}
	return decodeKept(rec.Stored)
}
