//go:build linux || darwin

package manage

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/waybillhq/waybill/internal/testserver"
)

// Server describes a running server. It is stored as NAME.json in the
// instance's folder, so that a test that kills a server can start it again.
type Server struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Port    int    `json:"port"`
	Ports   []int  `json:"ports"` // all of them, Port first
	DSN     string `json:"dsn"`
	// the variable that carries the DSN
	Env string `json:"env"`
	// more variables for tests, NAME=VALUE
	Also []string `json:"also,omitempty"`
	// the account it runs as, if not the caller's
	User string   `json:"user,omitempty"`
	Data string   `json:"data"`
	Log  string   `json:"log"`
	Argv []string `json:"argv"`
}

// EngineNames returns the names of all servers.
func EngineNames() []string {
	names := append(QuickNames(), testserver.KafkaName, testserver.PulsarName)
	for _, r := range releases() {
		names = append(names, postgres{release: r}.name())
	}
	return names
}

// QuickNames returns the servers that start in seconds, the default of Start.
func QuickNames() []string {
	return []string{testserver.PostgresName, testserver.MariaDBName, testserver.MySQLName, testserver.RedisName, testserver.RabbitMQName}
}

func writeServer(path string, s Server) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	// Readers of a kept instance must not see a partial file.
	if err := os.WriteFile(path+".new", append(b, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func readServer(path string) (Server, error) {
	var s Server
	b, err := os.ReadFile(path)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}
