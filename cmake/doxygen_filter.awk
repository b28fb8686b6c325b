# Converts the comments of the public headers to Doxygen's (FILTER_PATTERNS of cmake/Doxyfile.in).
function markup(text,    result) {
  gsub(/[<>#@]/, "\\\\&", text)
  gsub(/%/, "%%", text)
  while (match(text, /`[^`]+`/)) {
    result = result substr(text, 1, RSTART - 1) "<tt>" substr(text, RSTART + 1, RLENGTH - 2) "</tt>"
    text = substr(text, RSTART + RLENGTH)
  }
  return result text
}
# Lines indented by three blanks or more are tables and code: verbatim, unless they continue a list.
function comment_line(text) {
  if (text ~ /^ *- /) list = 1
  else if (text !~ /^   /) list = 0
  if (text ~ /^   / && !list && !verbatim) { print " * \\verbatim"; verbatim = 1 }
  if (text !~ /^   /) end_verbatim()
  print verbatim ? text : " *" markup(text)
}
function end_verbatim() {
  if (verbatim) print "\\endverbatim"
  verbatim = 0
}
function end_comment() {
  end_verbatim()
  print " */"
  block = lines = 0
}
lines && !/^ *\/\// { end_comment() }
FNR == 1 && /SPDX/ { block = /^\/\*/; lines = !block; print "/** \\file"; next }
/^ *namespace detail \{/ { print "/** \\cond */"; print; next }
/^ *\}  \/\/ namespace detail/ { print; print "/** \\endcond */"; next }
/^ *#(include|if|endif|pragma)|NOLINT|^ *\}  \/\/ namespace/ { sub(/ *\/\/.*/, ""); print; next }
# Headings of sections.
/^ *\/\/ -----*/ { print ""; next }
/^ *\/\* -----*/ { heading = !/\*\/ *$/; print ""; next }
heading { heading = !/\*\/ *$/; print ""; next }
block {
  text = $0
  sub(/^ *\*/, "", text)
  if ($0 ~ /^ *\*\/ *$/) { end_comment(); next }
  last = text ~ /\*\/ *$/
  sub(/ *\*\/ *$/, "", text)
  comment_line(text)
  if (last) end_comment()
  next
}
/^ *\/\*/ {
  text = $0
  sub(/^ *\/\*/, "", text)
  block = text !~ /\*\/ *$/
  sub(/ *\*\/ *$/, "", text)
  print "/**" markup(text) (block ? "" : " */")
  next
}
/^ *\/\// {
  text = $0
  sub(/^ *\/\//, "", text)
  if (!lines) print "/**"
  lines = 1
  comment_line(text)
  next
}
# Comments behind code.
match($0, /[^ ] +\/\/ /) { print substr($0, 1, RSTART) " /**< " markup(substr($0, RSTART + RLENGTH)) " */"; next }
match($0, /[^ ] +\/\* /) { print substr($0, 1, RSTART) " /**< " substr($0, RSTART + RLENGTH); next }
{ print }
