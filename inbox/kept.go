package inbox

import (
	"errors"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// Kept returns the event that a group stored with a record because its [Options.KeepEvent] is set: for programs that have the records and not the
// groups, such as the daemon.
func Kept(rec *store.InboxRecord) (waybill.Event, error) {
	if len(rec.Kept) == 0 {
		return waybill.Event{}, errors.New("inbox: the event was not kept with its record")
	}
	return decodeKept(rec.Kept)
}
