package mysqlstore

import (
	"context"
	"errors"
)

// clusterVariables show whether several servers of a cluster accept writes. A
// server without the plugin of a cluster does not have its variables.
const clusterVariables = `SHOW GLOBAL VARIABLES WHERE Variable_name IN
 ('wsrep_on', 'wsrep_provider', 'group_replication_group_name', 'group_replication_single_primary_mode')`

var (
	errGalera = errors.New("mysqlstore: the server is a node of a Galera cluster, whose nodes do not share row locks: " +
		"a relay on another node could settle events of a lane that it has lost; " +
		"connect all relays and writers to one node, and set Config.OneNode (store.one-node)")
	errPrimaries = errors.New("mysqlstore: the server belongs to a replication group with several primaries, which do not share row locks: " +
		"a relay on another primary could settle events of a lane that it has lost; " +
		"set group_replication_single_primary_mode, or connect all relays and writers to one primary, and set Config.OneNode (store.one-node)")
)

// checkCluster refuses servers of which several accept writes. The fence of a
// settlement is a shared lock on the row of the lane, which such clusters do
// not certify.
func (s *backend) checkCluster(ctx context.Context) error {
	if s.config().OneNode {
		return nil
	}
	var name, value string
	got := make(map[string]string)
	if err := each(ctx, s.db, clusterVariables, nil, func() { got[name] = value }, &name, &value); err != nil {
		return s.explain(err)
	}
	provider := got["wsrep_provider"]
	switch {
	case got["wsrep_on"] == "ON" && provider != "" && provider != "none":
		return errGalera
	case got["group_replication_group_name"] != "" && got["group_replication_single_primary_mode"] == "OFF":
		return errPrimaries
	}
	return nil
}
