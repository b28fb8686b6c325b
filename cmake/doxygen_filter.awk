# Converts the comments of the public headers to Doxygen's (FILTER_PATTERNS of cmake/Doxyfile.in).
function escape(text) {
  gsub(/[<>#@]/, "\\\\&", text)
  gsub(/%/, "%%", text)
  return text
}
# Lines indented by three blanks or more are tables and code: verbatim, unless they continue a list.
function comment_line(prefix, text) {
  if (text ~ /^ *- /) list = 1
  else if (text !~ /^   /) list = 0
  if (text ~ /^   / && !list && !verbatim) { print prefix " \\verbatim"; verbatim = 1 }
  if (verbatim && text !~ /^   /) { print prefix " \\endverbatim"; verbatim = 0 }
  if (verbatim) print (block ? "" : prefix) text
  else print prefix escape(text)
}
function end_verbatim(prefix) {
  if (verbatim) print prefix " \\endverbatim"
  verbatim = 0
}
FNR == 1 && /SPDX/ { block = /^\/\*/; print block ? "/** \\file" : "/// \\file"; next }
/^ *namespace detail \{/ { print "/// \\cond"; print; next }
/^ *\}  \/\/ namespace detail/ { print; print "/// \\endcond"; next }
/^ *#(include|if|endif|pragma)|NOLINT|^ *\}  \/\/ namespace/ { sub(/ *\/\/.*/, ""); print; next }
/^ *\/\/ -----*/ || /^ *\/\* -----*/ { block = !/\*\/ *$/ && /\/\*/; print ""; skipping = block; next }
skipping { skipping = !/\*\/ *$/; print ""; next }
block && /^ *\*\/ *$/ { end_verbatim(" *"); print; block = 0; next }
block && /^ *\*/ {
  text = $0
  sub(/^ *\*/, "", text)
  if (text ~ /\*\/ *$/) {
    sub(/ *\*\/ *$/, "", text)
    comment_line(" *", text)
    end_verbatim(" *")
    print " */"
    block = 0
  } else {
    comment_line(" *", text)
  }
  next
}
/^ *\/\*/ {
  text = $0
  sub(/^ *\/\*/, "", text)
  block = text !~ /\*\/ *$/
  sub(/ *\*\/ *$/, "", text)
  print "/**" escape(text) (block ? "" : " */")
  next
}
/^ *\/\// { text = $0; sub(/^ *\/\//, "", text); comment_line("///", text); next }
{ end_verbatim("///") }
match($0, /[^ ] +\/\/ /) { print substr($0, 1, RSTART) " ///< " escape(substr($0, RSTART + RLENGTH)); next }
match($0, /[^ ] +\/\* /) { print substr($0, 1, RSTART) " /**< " substr($0, RSTART + RLENGTH); next }
{ print }
