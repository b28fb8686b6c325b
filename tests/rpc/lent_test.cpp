// SPDX-License-Identifier: Apache-2.0
//
// Buffers of calls are sent from the memory of their owner, unless another thread could change it.
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "backplane/rpc.hpp"

namespace backplane::test {
namespace {

using Numbers = std::vector<double>;

// Where the one buffer of what is sent lies.
const void* place_of(const bp_rpc_content& content) {
  EXPECT_EQ(content.buffer_count, 1U);
  return content.buffer_count == 1 ? content.buffers[0].data : nullptr;
}

// Where that of a value lies. It is copied into `copy`.
const void* place_of(const bp_rpc_value& value, bool last_reference, Numbers* copy) {
  bp_rpc_content content = {};
  content.struct_size = sizeof(content);
  content.last_reference = last_reference ? 1 : 0;
  bp_error err;
  bp_error_init(&err);
  EXPECT_EQ(value.encode(value.object, &content, &err), BP_OK) << err.text;
  const void* const place = place_of(content);
  const auto* const data = static_cast<const double*>(place);
  copy->assign(data, data + content.buffers[0].count / sizeof(double));
  content.release(content.owner);
  return place;
}

TEST(RpcLentTest, AResultIsLentAndAKeptValueCopied) {
  const bp_rpc_value value = rpc::detail::keep<Numbers>(Numbers(1000, 0.5));
  const auto* const kept = static_cast<rpc::detail::Kept<Numbers>*>(value.object);
  Numbers copy;
  EXPECT_EQ(place_of(value, true, &copy), kept->value.data());
  EXPECT_EQ(copy, kept->value);
  EXPECT_NE(place_of(value, false, &copy), kept->value.data());
  EXPECT_EQ(copy, kept->value);
  value.destroy(value.object);
}

TEST(RpcLentTest, AnArgumentThatIsMovedInIsNotCopied) {
  const auto place_in_packer = [](auto&& argument) {
    rpc::detail::Packer packer;
    packer.add(std::forward<decltype(argument)>(argument));
    const bp_rpc_content content = packer.content();
    const void* const place = place_of(content);
    content.release(content.owner);
    return place;
  };
  Numbers moved(1000, 0.5);
  const void* const place = moved.data();
  EXPECT_EQ(place_in_packer(std::move(moved)), place);
  const Numbers left(1000, 0.5);
  EXPECT_NE(place_in_packer(left), left.data()) << "its owner may change it while it is being sent";
  const rpc::Array<double> array(Numbers(1000, 0.5));
  EXPECT_EQ(place_in_packer(array), array.data());
}

}  // namespace
}  // namespace backplane::test
