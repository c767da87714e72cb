package mysqlstore

import "testing"

// TestLastIssued reads the counter from the definitions that MySQL and MariaDB
// print. A definition that is not understood would hide a sequence that went
// back.
func TestLastIssued(t *testing.T) {
	const columns = "CREATE TABLE `waybill_outbox` (\n  `seq` bigint NOT NULL AUTO_INCREMENT COMMENT ') ENGINE=x AUTO_INCREMENT=7',\n  PRIMARY KEY (`seq`)\n"
	for definition, want := range map[string]int64{
		columns + ") ENGINE=InnoDB AUTO_INCREMENT=42 DEFAULT CHARSET=utf8mb4":                                        41,
		columns + ") ENGINE=InnoDB DEFAULT CHARSET=utf8mb4":                                                          0,
		columns + ") /*!50100 TABLESPACE `innodb_system` */ ENGINE=InnoDB AUTO_INCREMENT=42 DEFAULT CHARSET=utf8mb4": 41,
		columns + ") ENGINE=InnoDB AUTO_INCREMENT=9223372036854775807 DEFAULT CHARSET=utf8mb4\n/*!50100 PARTITION …": 9223372036854775806,
	} {
		if got, err := lastIssued(definition); err != nil || got != want {
			t.Errorf("%d, %v; want %d for %s", got, err, want, definition)
		}
	}
	if _, err := lastIssued(columns + ") ENGINE=InnoDB AUTO_INCREMENT=99999999999999999999"); err == nil {
		t.Error("a number beyond int64 was accepted")
	}
}
