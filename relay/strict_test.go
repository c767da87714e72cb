package relay

import "github.com/waybillhq/waybill/relay/internal/ledger"

func init() { ledger.Strict = true }
