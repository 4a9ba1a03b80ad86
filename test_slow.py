import unittest, time
class A(unittest.TestCase):
    def test_slow(self):
        try: time.sleep(100)
        finally: print("cleaned up")
