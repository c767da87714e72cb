package mysqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/mysqlstore"
)

// Placed is the payload of OrderPlaced.
type Placed struct {
	Total int `json:"total"`
}

var OrderPlaced = waybill.Define[Placed]("OrderPlaced", waybill.Spec{AggregateType: "order"})

// An order and its event are committed together, or not at all. The service
// chooses the driver's settings; the store works with any of them.
func Example() {
	ctx := context.Background()
	db, err := sql.Open("mysql", "app:secret@tcp(127.0.0.1:3306)/shop")
	if err != nil {
		panic(err)
	}
	defer db.Close() //nolint:errcheck // the example is over then
	s, err := mysqlstore.New(db, mysqlstore.Config{})
	if err != nil {
		panic(err)
	}
	if _, err := s.Migrate(ctx); err != nil {
		panic(err)
	}
	box, err := outbox.New(s, outbox.Config{})
	if err != nil {
		panic(err)
	}
	err = box.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO orders (id) VALUES (?)", "o-1"); err != nil {
			// Roll back, above all after a deadlock: the server has already
			// rolled back.
			return err
		}
		return box.Write(ctx, tx, OrderPlaced.New("o-1", Placed{Total: 9990}))
	})
	if err != nil {
		panic(err)
	}
}

// A team that may not run DDL from code hands the script to a database
// administrator.
func ExampleStore_MigrationSQL() {
	db := sql.OpenDB(nowhere{})
	defer db.Close() //nolint:errcheck // nothing was opened
	s, err := mysqlstore.New(db, mysqlstore.Config{Schema: "shop", Prefix: "events_"})
	if err != nil {
		panic(err)
	}
	for line := range strings.Lines(s.MigrationSQL()) {
		if strings.HasPrefix(line, "CREATE TABLE") || strings.HasPrefix(line, "DROP PROCEDURE") {
			fmt.Print(line)
		}
	}
	// Output:
	// CREATE TABLE IF NOT EXISTS `shop`.`events_migration` (
	// CREATE TABLE IF NOT EXISTS `shop`.`events_setting` (
	// CREATE TABLE IF NOT EXISTS `shop`.`events_outbox` (
	// CREATE TABLE IF NOT EXISTS `shop`.`events_delayed` (
	// CREATE TABLE IF NOT EXISTS `shop`.`events_dead` (
	// CREATE TABLE IF NOT EXISTS `shop`.`events_history` (
	// CREATE TABLE IF NOT EXISTS `shop`.`events_dedup` (
	// CREATE TABLE IF NOT EXISTS `shop`.`events_lane` (
	// CREATE TABLE IF NOT EXISTS `shop`.`events_node` (
	// DROP PROCEDURE IF EXISTS `shop`.`events_heartbeat`;
	// DROP PROCEDURE IF EXISTS `shop`.`events_settle`;
	// DROP PROCEDURE IF EXISTS `shop`.`events_finish`;
	// DROP PROCEDURE IF EXISTS `shop`.`events_free_keys`;
	// DROP PROCEDURE IF EXISTS `shop`.`events_purge_written`;
	// CREATE TABLE IF NOT EXISTS `shop`.`events_inbox` (
	// CREATE TABLE IF NOT EXISTS `shop`.`events_idempotency` (
	// CREATE TABLE IF NOT EXISTS `shop`.`events_job` (
	// CREATE TABLE IF NOT EXISTS `shop`.`events_job_sent` (
	// DROP PROCEDURE IF EXISTS `shop`.`events_guard_lanes`;
	// DROP PROCEDURE `shop`.`events_guard_lanes`;
	// DROP PROCEDURE IF EXISTS `shop`.`events_settle`;
	// DROP PROCEDURE IF EXISTS `shop`.`events_settle`;
	// CREATE TABLE IF NOT EXISTS `shop`.`events_destination` (
	// CREATE TABLE IF NOT EXISTS `shop`.`events_backlog` (
	// CREATE TABLE IF NOT EXISTS `shop`.`events_backlog_delayed` (
	// CREATE TABLE IF NOT EXISTS `shop`.`events_backlog_dead` (
	// DROP PROCEDURE IF EXISTS `shop`.`events_settle_divert`;
	// DROP PROCEDURE IF EXISTS `shop`.`events_settle_backlog`;
	// CREATE TABLE IF NOT EXISTS `shop`.`events_audit` (
	// DROP PROCEDURE IF EXISTS `shop`.`events_add_causes`;
	// DROP PROCEDURE `shop`.`events_add_causes`;
	// DROP PROCEDURE IF EXISTS `shop`.`events_add_report`;
	// DROP PROCEDURE `shop`.`events_add_report`;
	// DROP PROCEDURE IF EXISTS `shop`.`events_heartbeat_report`;
	// DROP PROCEDURE IF EXISTS `shop`.`events_add_lists`;
	// DROP PROCEDURE `shop`.`events_add_lists`;
	// CREATE TABLE IF NOT EXISTS `shop`.`events_rollup` (
	// DROP PROCEDURE IF EXISTS `shop`.`events_heartbeat_counts`;
}
