#!/bin/sh
# Makes the certificates of this folder with OpenSSL, for a server named localhost; they last a hundred years.
set -eu
cd "$(dirname "$0")"
openssl ecparam -name prime256v1 -genkey -noout -out ca.key
openssl req -x509 -new -key ca.key -subj "/CN=Hearth's tests" -days 36500 -out ca.pem \
    -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign"
openssl ecparam -name prime256v1 -genkey -noout | openssl pkcs8 -topk8 -nocrypt -out server.key
printf 'subjectAltName=DNS:localhost\nbasicConstraints=critical,CA:FALSE\nextendedKeyUsage=serverAuth\n' >server.ext
openssl req -new -key server.key -subj "/CN=localhost" |
    openssl x509 -req -CA ca.pem -CAkey ca.key -set_serial 1 -days 36500 -extfile server.ext -out server.pem
# Nothing else shall ever be signed with it.
rm ca.key server.ext
