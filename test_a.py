import unittest, subprocess
class A(unittest.TestCase):
    def test_ok(self): print("not ok-ish noise"); subprocess.Popen(["sleep","100"])
    def test_bad(self): self.assertEqual(1,2)
    @unittest.skip("needs root\nand more")
    def test_skip(self): pass
    def test_sub(self):
        """doc"""
        for i in range(3):
            with self.subTest(i=i): self.assertNotEqual(i,1)
class B(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise unittest.SkipTest("no netns")
    def test_x(self): pass
class C(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise RuntimeError("boom")
    def test_x(self): pass
if __name__=="__main__": unittest.main()
