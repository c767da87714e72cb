package ledger

func init() { Strict = true }
