// SPDX-License-Identifier: Apache-2.0
//
// The files that the layer writes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace backplane::trace {

// A path of this rank's and group's own. %r becomes the rank in the job, %g the group's name with everything but
// letters, digits, '.', '_' and '-' replaced by '_', %% a %. A pattern without %r gets ".<rank>" at its end if the
// world has more than one rank; a path that another group of this process is writing gets ".2", ".3" and so on. Throws
// BP_INVALID if a % is followed by anything else.
class OwnPath {
 public:
  OwnPath(std::string_view pattern, int32_t rank, int32_t world_size, std::string_view group);
  ~OwnPath();  // the path may be used again
  OwnPath(const OwnPath&) = delete;
  OwnPath& operator=(const OwnPath&) = delete;

  const std::string& text() const { return text_; }

  // Replaces the file's content in one step: a reader sees the old or the new. Blocks on the disk. Throws BP_RESOURCE
  // with the path and the reason.
  void write(std::string_view content) const;

 private:
  std::string text_;
};

}  // namespace backplane::trace
