// SPDX-License-Identifier: Apache-2.0
//
// Output files of the layer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace backplane::trace {

// An output path unique to this rank and group. %r is replaced by the rank in the job, %g by the group's name with all
// characters but letters, digits, '.', '_' and '-' replaced by '_', and %% by %. A pattern without %r gets the suffix
// ".<rank>" if the world has more than one rank. A path that another group of this process writes to gets ".2", ".3"
// and so on. Throws BP_INVALID if % is followed by any other character.
class OutputPath {
 public:
  OutputPath(std::string_view pattern, int32_t rank, int32_t world_size, std::string_view group);
  ~OutputPath();  // releases the path
  OutputPath(const OutputPath&) = delete;
  OutputPath& operator=(const OutputPath&) = delete;

  const std::string& text() const { return text_; }

  // Replaces the file atomically: a reader sees the old or the new content. Blocks on the disk. Throws BP_RESOURCE with
  // the path and the reason.
  void write(std::string_view content) const;

 private:
  std::string text_;
};

}  // namespace backplane::trace
