package natsembed

import "github.com/nats-io/nats-server/v2/server"

// JetStream returns what the running server's JetStream works with.
func (s *Server) JetStream() *server.JetStreamConfig { return s.server.JetStreamConfig() }
