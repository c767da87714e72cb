package command_test

import (
	"os"
	"os/exec"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/internal/testserver"
)

// pipe passes the output of a command to the database's shell, as docs/sql.md
// describes.
func (s *script) pipe(args []string) {
	s.t.Helper()
	printed, errs, code := s.run(s.t.Context(), args, "")
	if code != 0 {
		s.t.Fatalf("%v: %s", args, errs)
	}
	cmd := s.shell()
	cmd.Stdin = strings.NewReader(printed)
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("%s: %v\n%s", cmd.Path, err, out)
	}
}

func (s *script) shell() *exec.Cmd {
	s.t.Helper()
	switch s.kind {
	case connect.SQLite:
		return exec.CommandContext(s.t.Context(), testserver.Shell(s.t, "sqlite3"), "-batch", "waybill.db")
	case connect.Postgres:
		return exec.CommandContext(s.t.Context(), testserver.Shell(s.t, "psql"), "-X", "-q", testserver.Postgres(s.t))
	case connect.MySQL, mariadb:
		cfg, err := mysql.ParseDSN(testserver.Address(s.t, s.kind))
		s.must(err)
		host, port, _ := strings.Cut(cfg.Addr, ":")
		cmd := exec.CommandContext(s.t.Context(), testserver.Shell(s.t, s.kind),
			"--no-defaults", "--protocol=tcp", "--host="+host, "--port="+port, "--user="+cfg.User, "--default-character-set=utf8mb4", s.database)
		cmd.Env = append(os.Environ(), "MYSQL_PWD="+cfg.Passwd)
		return cmd
	}
	s.t.Fatalf("%s has no shell", s.kind)
	return nil
}
