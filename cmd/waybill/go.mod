module github.com/waybillhq/waybill/cmd/waybill

go 1.26.0

require (
	github.com/go-sql-driver/mysql v1.10.1
	github.com/jackc/pgx/v5 v5.11.0
	github.com/mattn/go-isatty v0.0.24
	github.com/prometheus/client_golang v1.24.1
	github.com/rabbitmq/amqp091-go v1.15.0
	github.com/redis/go-redis/v9 v9.17.3
	github.com/nats-io/nats.go v1.47.0
	github.com/twmb/franz-go v1.22.2
	github.com/twmb/franz-go/pkg/kadm v1.19.0
	go.opentelemetry.io/otel/exporters/prometheus v0.69.0
	go.opentelemetry.io/otel/sdk/metric v1.47.0
	go.opentelemetry.io/otel/trace v1.47.0
	github.com/spf13/cobra v1.10.2
	github.com/spf13/pflag v1.0.10
	github.com/waybillhq/waybill v0.0.0
	github.com/waybillhq/waybill/broker/kafkabroker v0.0.0
	github.com/waybillhq/waybill/broker/natsbroker v0.0.0
	github.com/waybillhq/waybill/broker/pulsarbroker v0.0.0
	github.com/waybillhq/waybill/broker/rabbitbroker v0.0.0
	github.com/waybillhq/waybill/broker/redisbroker v0.0.0
	github.com/waybillhq/waybill/broker/webhook v0.0.0
	github.com/waybillhq/waybill/observe/otelobserve v0.0.0
	github.com/waybillhq/waybill/store/mysqlstore v0.0.0
	github.com/waybillhq/waybill/store/pgstore v0.0.0
	github.com/waybillhq/waybill/store/sqlitestore v0.0.0
	go.uber.org/goleak v1.3.0
	go.yaml.in/yaml/v3 v3.0.5
)

require (
	filippo.io/edwards25519 v1.2.0 // indirect
	github.com/antithesishq/antithesis-sdk-go v0.4.3-default-no-op // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/dgryski/go-rendezvous v0.0.0-20200823014737-9f7001d12a5f // indirect
	github.com/dustin/go-humanize v1.1.0 // indirect
	github.com/google/go-tpm v0.9.6 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/puddle/v2 v2.2.2 // indirect
	github.com/klauspost/compress v1.18.0 // indirect
	github.com/minio/highwayhash v1.0.3 // indirect
	github.com/nats-io/jwt/v2 v2.8.0 // indirect
	github.com/nats-io/nats-server/v2 v2.12.1 // indirect
	github.com/nats-io/nkeys v0.4.11 // indirect
	github.com/nats-io/nuid v1.0.1 // indirect
	github.com/ncruces/go-strftime v1.1.0 // indirect
	github.com/oklog/ulid/v2 v2.1.2 // indirect
	github.com/remyoudompheng/bigfft v0.0.0-20230129092748-24d4a6f8daec // indirect
	golang.org/x/crypto v0.43.0 // indirect
	golang.org/x/sync v0.23.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.30.0 // indirect
	golang.org/x/time v0.14.0 // indirect
	modernc.org/libc v1.77.1 // indirect
	modernc.org/mathutil v1.7.1 // indirect
	modernc.org/memory v1.12.1 // indirect
	modernc.org/sqlite v1.60.1 // indirect
)

replace (
	github.com/waybillhq/waybill => ../..
	github.com/waybillhq/waybill/broker/kafkabroker => ../../broker/kafkabroker
	github.com/waybillhq/waybill/broker/natsbroker => ../../broker/natsbroker
	github.com/waybillhq/waybill/broker/pulsarbroker => ../../broker/pulsarbroker
	github.com/waybillhq/waybill/broker/rabbitbroker => ../../broker/rabbitbroker
	github.com/waybillhq/waybill/broker/redisbroker => ../../broker/redisbroker
	github.com/waybillhq/waybill/broker/webhook => ../../broker/webhook
	github.com/waybillhq/waybill/observe/otelobserve => ../../observe/otelobserve
	github.com/waybillhq/waybill/store/mysqlstore => ../../store/mysqlstore
	github.com/waybillhq/waybill/store/pgstore => ../../store/pgstore
	github.com/waybillhq/waybill/store/sqlitestore => ../../store/sqlitestore
)
