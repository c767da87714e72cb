package pgstore

import (
	"context"
	"fmt"
	"strconv"

	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

var (
	// restoreLanes releases all lanes as dirty, with epochs that were never
	// issued.
	restoreLanes = `UPDATE {lane} SET epoch = epoch + ` + strconv.Itoa(driver.RestoreEpochs) + `, owner = NULL, token = NULL, dirty = true`

	// restoreSequence raises the sequence. No rollback lowers it again: seqs
	// may have gaps.
	restoreSequence = `SELECT setval('{outbox_seq}', coalesce(pg_sequence_last_value('{outbox_seq}'::regclass), 0) + ` +
		strconv.Itoa(driver.RestoreSeqs) + `)`
)

// Restored implements [driver.Restorer]. It needs the UPDATE privilege on the
// sequence, which its owner has.
func (c *core) Restored(ctx context.Context, force bool) error {
	return c.explain(c.db.within(ctx, func(tx database) error {
		live, err := c.withoutNodes(ctx, tx)
		if err != nil {
			return err
		}
		if live && !force {
			return fmt.Errorf("restored: %w", store.ErrRelayLive)
		}
		for _, statement := range []string{c.sql.restoreLanes, c.sql.restoreNodes, c.sql.restoreSequence} {
			if err := tx.exec(ctx, statement); err != nil {
				return err
			}
		}
		return c.note(ctx, tx, 1)
	}))
}
