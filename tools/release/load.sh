#!/bin/sh
# Loads this release into a registry, without a network beyond it:   sh load.sh REGISTRY[/PATH]
# Needs skopeo and helm, logged in there (`skopeo login`, `helm registry login`). PLAIN_HTTP=1: the registry has no TLS.
set -eu
registry=${1:?"usage: sh load.sh REGISTRY[/PATH]"}
cd "$(dirname "$0")"
sha256sum --quiet --check SHA256SUMS
# A copy whose digest is not the one in index.json is refused by skopeo.
while read -r image; do
  name=${image##*/}
  skopeo --insecure-policy copy --quiet --all --preserve-digests ${PLAIN_HTTP:+--dest-tls-verify=false} \
    "oci:images:$name" "docker://$registry/$name"
  echo "$registry/$name"
done <images.txt
for chart in rlhf-operator-*.tgz; do
  version=${chart#rlhf-operator-}
  ${HELM:-helm} push "$chart" "oci://$registry/charts" ${PLAIN_HTTP:+--plain-http}
  echo "install it with:
  helm install rlhf oci://$registry/charts/rlhf-operator --version ${version%.tgz} -n rlhf-system --create-namespace \\
    --set global.imageRegistry=$registry"
done
