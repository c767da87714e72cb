//go:build linux || darwin

package manage

import "context"

// PgBouncer returns a command line that runs a newer PgBouncer than Debian's stable suites have:
// one that keeps prepared statements. It is fetched when it is not there. It is loaded as the
// caller, who alone can enter the folder, and takes the user to run as by -u.
func (h *Home) PgBouncer(ctx context.Context) ([]string, error) {
	d := debs{name: "pgbouncer", roots: []string{"pgbouncer"}, useless: []string{"usr/share", "usr/lib/systemd"}, megabytes: 30}
	if err := d.fetch(ctx, h); err != nil {
		return nil, err
	}
	return d.command("usr/sbin/pgbouncer"), nil
}
