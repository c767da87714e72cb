//go:build linux || darwin

package manage

import "context"

// PgBouncer returns a command line that runs a newer PgBouncer than Debian's
// stable suites have: one that keeps prepared statements. It is fetched if it
// is missing. The loader runs as the caller, because only the caller can enter
// the folder, and PgBouncer switches to the user given by -u.
func (h *Home) PgBouncer(ctx context.Context) ([]string, error) {
	d := debs{name: "pgbouncer", roots: []string{"pgbouncer"}, useless: []string{"usr/share", "usr/lib/systemd"}, megabytes: 30}
	if err := d.fetch(ctx, h); err != nil {
		return nil, err
	}
	return d.command("usr/sbin/pgbouncer"), nil
}
