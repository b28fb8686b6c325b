// SPDX-License-Identifier: Apache-2.0
#include "rpc/payload.hpp"

#include <utility>

#include "error.hpp"

namespace backplane::core::rpc {
namespace {

// Releases what the C API was given in its destructor, unless it was shared.
class Owner {
 public:
  explicit Owner(const bp_rpc_content& given) : owner_(given.owner), release_(given.release) {}
  ~Owner() {
    if (release_ != nullptr) release_(owner_);
  }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;

  std::shared_ptr<void> share() {
    if (release_ == nullptr) return {};
    return {owner_, std::exchange(release_, nullptr)};
  }

 private:
  void* const owner_;
  void (*release_)(void*);
};

}  // namespace

Content take_content(const bp_rpc_content& given) {
  Owner owner(given);  // first, so that an exception releases the buffers
  Content content;
  if (given.payload_size > 0) content.payload.assign(static_cast<const char*>(given.payload), given.payload_size);
  if (given.buffer_count > 0) content.buffers.assign(given.buffers, given.buffers + given.buffer_count);
  for (uint64_t i = 0; i < given.ref_count; ++i) content.refs.push_back(given.refs[i]->ref);
  // Without buffers everything is a copy. The release of what was given may drop references, during the call.
  if (!content.buffers.empty()) content.owner = owner.share();
  return content;
}

Content Value::encode(const std::shared_ptr<Value>& value, bool last_reference) {
  bp_rpc_content encoded = {};
  encoded.struct_size = sizeof(bp_rpc_content);
  encoded.last_reference = last_reference ? 1 : 0;
  bp_error err;
  bp_error_init(&err);
  const int32_t status = value->value_.encode(value->value_.object, &encoded, &err);
  if (status != BP_OK) throw_report(status, err, "");
  Content content = take_content(encoded);
  if (content.buffers.empty()) return content;
  // The value is destroyed last.
  content.owner = std::make_shared<std::pair<std::shared_ptr<Value>, std::shared_ptr<void>>>(value, content.owner);
  return content;
}

}  // namespace backplane::core::rpc
