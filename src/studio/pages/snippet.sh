api=__BASE__/api/v1/images
auth="Authorization: Bearer __KEY__"
work=$(mktemp -d) && trap 'rm -r "$work"' EXIT

# Submit. The answer is a task, still processing.
curl -sS -D "$work/head" -o "$work/task" "$api/generate" -H "$auth" \
  -H 'Content-Type: application/json' --data-binary @- <<'JSON' || exit 1
__REQUEST__
JSON
id=$(sed -n 's/.*"task_id":"\([^"]*\)".*/\1/p' "$work/task")

# Poll while the task is processing, when the header X-Poll-After says so.
while grep -q '"status":"processing"' "$work/task"; do
  sleep "$(tr -d '\r' <"$work/head" | sed -n 's/^[Xx]-[Pp]oll-[Aa]fter: *//p')"
  curl -sS -D "$work/head" -o "$work/task" "$api/task/$id" -H "$auth" || exit 1
done

# Save the images, or say why there are none.
urls=$(grep -o '"url":"[^"]*"' "$work/task" | cut -d '"' -f 4)
for url in $urls; do
  name=${url%%\?*} && name=${name##*/}
  curl -fsS -o "$name" "$url" && echo "saved $name" || exit 1
done
if [ -z "$urls" ]; then
  sed -E 's/.*"(error|message)":"(([^"\\]|\\.)*)".*/\2/; s/\\(.)/\1/g' "$work/task" >&2
  echo >&2
  exit 1
fi
