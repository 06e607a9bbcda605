#!/bin/sh
# Four hospitals, from raw tables to predictions and a statement, in fourteen commands. Run it in an empty folder:
#     sh .../examples/hospitals.sh
# The tables have mixed kinds of columns, missing values, patients with two rows, columns in another order in each file,
# decimal commas in one of them, and an outcome that one row in twelve has.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
run=dp-fedsgd-hospitals-2 # the first run of the store is the normalisation

python "$here/hospitals.py" hospitals
sordino data schema hospitals --label outcome --person patient_id -o schema.toml
# The answers: ranges and values that every doctor knows are public; nothing else was read from records.
sed -i -e '/^\[columns.age\]/,/^range/s/^range.*/range = [18, 100]/' \
    -e '/^\[columns.systolic\]/,/^range/s/^range.*/range = [70, 220]/' \
    -e '/^\[columns.creatinine\]/,/^range/s/^range.*/range = [0, 10]/' -e 's/^public = false/public = true/' schema.toml
sordino data show hospitals --schema schema.toml
sordino data normalise hospitals --schema schema.toml --budget 2
# It says what is left: 1.885.
sordino run --data hospitals --schema schema.toml --epsilon 1.885 --delta 1e-05 --budget-over-runs 2
sordino show "$run"
sordino show "$run" --clients
sordino predict "$run" hospitals-new/north.csv --client north -o predictions.csv
sordino export "$run" --format onnx -o shared.onnx
sordino ledger "$run" --verify
sordino ledger "$run" --csv > ledger.csv
sordino statement "$run" -o statement.md
sordino statement "$run" -o statement.html
